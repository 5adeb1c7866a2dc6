// The cluster clients of ioredis and node-redis against two announced gateways. Argument: the URL of one.
const assert = require("node:assert/strict");
const Redis = require("ioredis");
const { createCluster } = require("redis");

const NAMES = Array.from({ length: 20 }, (_, n) => `s${n}`);

async function ioredis(url) {
  const client = new Redis.Cluster([url]);
  for (const name of NAMES) await client.xadd(name, "*", "of", name);
  assert.equal(client.nodes("master").length, 2);
  await client.xgroup("CREATE", "s3", "workers", "0");
  const [[, entries]] = await client.xreadgroup("GROUP", "workers", "ann", "STREAMS", "s3", ">");
  assert.deepEqual(entries[0][1], ["of", "s3"]);
  const multi = await client.multi().xadd("s4", "*", "a", "b").xlen("s4").exec();
  assert.equal(multi[1][1], 2);
  client.disconnect();
}

async function nodeRedis(url) {
  const client = createCluster({ rootNodes: [{ url }] });
  await client.connect();
  for (const name of NAMES) await client.set(`key of ${name}`, name);
  assert.equal(client.masters.length, 2);
  assert.equal(await client.get("key of s7"), "s7");
  const [{ messages }] = await client.xReadGroup("workers", "bob", { key: "s3", id: "0" });
  assert.deepEqual(messages, []);
  assert.equal((await client.multi().xAdd("s4", "*", { a: "b" }).xLen("s4").exec())[1], 3);
  await client.close();
}

(async () => {
  await ioredis(process.argv[2]);
  await nodeRedis(process.argv[2]);
  console.log("fine");
})();
