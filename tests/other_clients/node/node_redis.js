// node-redis against the gateway: produce, consume in a group, retry, MULTI, pub/sub. Argument: the URL.
const assert = require("node:assert/strict");
const { createClient } = require("redis");

async function main(url) {
  const client = await createClient({ url, RESP: 2 }).connect();
  const reader = await client.duplicate().connect();
  await client.del("orders");
  await client.set("plain", "value");
  assert.equal(await client.get("plain"), "value");
  await client.xGroupCreate("orders", "workers", "0", { MKSTREAM: true });

  const waiting = reader.xReadGroup("workers", "ann", { key: "orders", id: ">" }, { BLOCK: 5000, COUNT: 1 });
  const first = await client.xAdd("orders", "*", { item: "book" });
  const got = await waiting;
  assert.equal(got[0].messages[0].id, first);
  assert.equal(got[0].messages[0].message.item, "book");

  const ids = await Promise.all([...Array(50).keys()].map((n) => client.xAdd("orders", "*", { n: String(n) })));
  assert.equal(new Set(ids).size, 50);
  const rest = await client.xReadGroup("workers", "bob", { key: "orders", id: ">" }, { COUNT: 100 });
  assert.deepEqual(rest[0].messages.map((m) => m.id), ids);
  assert.equal(await client.xAck("orders", "workers", ids), 50);
  const claimed = await client.xAutoClaim("orders", "workers", "bob", 0, "0-0");
  assert.equal(claimed.messages[0].id, first);
  assert.equal(await client.xAck("orders", "workers", first), 1);
  assert.equal((await client.xPending("orders", "workers")).pending, 0);
  assert.equal((await client.xInfoStream("orders")).length, 51);

  const done = await client.multi().incr("count").xAdd("orders", "*", { last: "1" }).xLen("orders").exec();
  assert.equal(done[0], 1);
  assert.equal(done[2], 52);
  const told = new Promise((heard) => reader.subscribe("news", heard));
  while ((await client.publish("news", "hello")) === 0);
  assert.equal(await told, "hello");
  await client.del(["count", "orders"]);
  await reader.close();
  await client.close();
}

// It calls its own reading of XREAD by RESP3 unstable, and refuses it: the rest.
async function byResp3(url) {
  const client = await createClient({ url, RESP: 3 }).connect();
  const id = await client.xAdd("orders", "*", { item: "book" });
  assert.deepEqual((await client.xRange("orders", "-", "+")).map((m) => [m.id, { ...m.message }]), [[id, { item: "book" }]]);
  assert.equal((await client.xInfoStream("orders")).length, 1);
  await client.hSet("h", { a: 1, b: 2 });
  assert.deepEqual({ ...(await client.hGetAll("h")) }, { a: "1", b: "2" });
  assert.equal((await client.multi().xLen("orders").hGet("h", "a").exec())[0], 1);
  await client.close();
}

(async () => {
  await main(process.argv[2]);
  await byResp3(process.argv[2]);
  console.log("fine");
})();
