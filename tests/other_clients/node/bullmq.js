// BullMQ through the gateway: jobs are produced, done, and tried again when they fail.
const assert = require("node:assert");
const { Queue, Worker } = require("bullmq");

async function main(url) {
  const { hostname: host, port } = new URL(url);
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  const queue = new Queue("orders", { connection });
  const tries = {};
  const done = [];
  const all = new Promise((resolve) => {
    const worker = new Worker(
      "orders",
      async (job) => {
        tries[job.data.n] = (tries[job.data.n] || 0) + 1;
        if (job.data.n === 3 && tries[3] < 3) throw new Error("not yet");
        return job.data.n * 2;
      },
      { connection },
    );
    worker.on("completed", (job, result) => {
      done.push(result);
      if (done.length === 5) resolve(worker);
    });
  });
  for (let n = 1; n <= 5; n++) await queue.add("order", { n }, { attempts: 5, backoff: { type: "fixed", delay: 20 } });
  const worker = await all;
  assert.deepStrictEqual(done.sort((a, b) => a - b), [2, 4, 6, 8, 10]);
  assert.strictEqual(tries[3], 3);
  assert.deepStrictEqual(await queue.getJobCounts("completed", "failed", "waiting"), { completed: 5, failed: 0, waiting: 0 });
  await worker.close();
  await queue.close();
  console.log("fine");
}

main(process.argv[2]).catch((error) => {
  console.error(error);
  process.exit(1);
});
