// Checks the format of src/braidstream/lua/*.lua with stylua; with --write, formats them. Run by `make check` and `make format`.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { CollapseSimpleStatement, Config, formatCode, IndentType, LuaVersion, OutputVerification, QuoteStyle } from "@johnnymorganz/stylua";

const COLUMNS = 120;
const folder = new URL("../../src/braidstream/lua/", import.meta.url);
const writes = process.argv.includes("--write");
const problems = [];

function style() {
  const config = Config.new();
  config.syntax = LuaVersion.Lua51;
  config.column_width = COLUMNS;
  config.indent_type = IndentType.Spaces;
  config.indent_width = 2;
  config.quote_style = QuoteStyle.AutoPreferSingle;
  config.collapse_simple_statement = CollapseSimpleStatement.Always;
  return config;
}

for (const name of readdirSync(folder).filter((each) => each.endsWith(".lua"))) {
  const path = new URL(name, folder);
  const text = readFileSync(path, "utf8");
  const formatted = formatCode(text, style(), undefined, OutputVerification.Full);
  if (formatted !== text) {
    if (writes) writeFileSync(path, formatted);
    else problems.push(`${name} is not formatted. Type: make format`);
  }
  formatted.split("\n").forEach((line, at) => {
    if (line.length > COLUMNS) problems.push(`${name}:${at + 1}: more than ${COLUMNS} columns`);
  });
}

problems.forEach((problem) => console.error(problem));
process.exit(problems.length ? 1 : 0);
