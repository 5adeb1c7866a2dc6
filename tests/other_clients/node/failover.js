// Two addresses, and messages with IDs: what docs/guides/when-a-region-dies.md shows, as it stands there.
const Redis = require("ioredis");
const { readFileSync } = require("node:fs");

const [us, eu] = process.argv.slice(2);
const page = readFileSync(`${__dirname}/../../../docs/guides/when-a-region-dies.md`, "utf8");
const shown = page.split("```js\n")[1].split("```")[0].replace("await send", "const first = send");
const body = `const options = { maxRetriesPerRequest: 0, commandTimeout: 1000 }; ${shown}; return { regions, send };`;

(async () => {
  const { regions, send } = new Function("Redis", "us", "eu", body)(Redis, us, eu);
  for (const region of regions) region.on("error", () => {});
  for (let n = 2; n <= 100; n++) {  // the page sends the first one
    await send("XADD", "orders", "IDMP", "checkout-1", `order-${n}`, "*", "n", `${n}`);
    await new Promise((done) => setTimeout(done, 20));
  }
  console.log("fine");
  process.exit(0);
})();
