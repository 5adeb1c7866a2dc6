// ioredis against the gateway: produce, consume in a group, retry, pipeline, MULTI, pub/sub. Argument: the URL.
const assert = require("node:assert/strict");
const Redis = require("ioredis");

(async () => {
  const client = new Redis(process.argv[2]);
  const reader = client.duplicate();
  await client.del("orders");
  await client.xgroup("CREATE", "orders", "workers", "$", "MKSTREAM");
  const waiting = reader.xreadgroup("GROUP", "workers", "ann", "BLOCK", 5000, "STREAMS", "orders", ">");
  const first = await client.xadd("orders", "*", "item", "book");
  assert.deepEqual(await waiting, [["orders", [[first, ["item", "book"]]]]]);
  const [[, claimed]] = [await client.xautoclaim("orders", "workers", "bob", 0, "0-0")];
  assert.deepEqual(claimed, [[first, ["item", "book"]]]);
  assert.equal(await client.xack("orders", "workers", first), 1);

  const pipeline = client.pipeline();
  for (let n = 0; n < 100; n++) pipeline.xadd("orders", "*", "n", n).set(`k${n % 5}`, n);
  const replies = await pipeline.exec();
  assert.ok(replies.every(([error]) => error === null));
  assert.equal(await client.xlen("orders"), 101);
  assert.equal((await client.xrange("orders", "-", "+", "COUNT", 10)).length, 10);

  const multi = await client.multi().xadd("orders", "*", "a", "b").get("k1").xlen("orders").exec();
  assert.equal(multi[1][1], "96");
  assert.equal(multi[2][1], 102);
  await client.watch("orders");
  await reader.xadd("orders", "*", "a", "b");
  assert.equal(await client.multi().xlen("orders").exec(), null);

  const told = new Promise((heard) => reader.on("message", (channel, text) => heard(text)));
  await reader.subscribe("news");
  await client.publish("news", "hello");
  assert.equal(await told, "hello");
  await client.del("orders");
  reader.disconnect();
  client.disconnect();
  console.log("fine");
})();
