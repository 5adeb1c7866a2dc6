// Turns every docs/drawings/*.pikchr into an SVG file beside it. Run by `make drawings`.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const load = createRequire(import.meta.url)("pikchr-js");
const folder = new URL("../../docs/drawings/", import.meta.url);

// An <img> inherits no font, so the file names one; a size in pixels keeps letters of all drawings equally large.
function finished(svg, name) {
  const [, width, height] = svg.match(/viewBox="0 0 ([\d.]+) ([\d.]+)"/) ?? [];
  if (!width) throw new Error(`${name}: ${svg}`);
  const size = `width="${Math.round(width * 0.8)}" height="${Math.round(height * 0.8)}"`;
  return svg.replace(/<svg [^>]*>/, `<svg xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" ${size} viewBox="0 0 ${width} ${height}">`);
}

const pikchr = await load();
for (const name of readdirSync(folder).filter((name) => name.endsWith(".pikchr")).sort()) {
  const svg = finished(pikchr(readFileSync(new URL(name, folder), "utf8")), name);
  writeFileSync(new URL(name.replace(/pikchr$/, "svg"), folder), svg.trim() + "\n");
  console.log(`docs/drawings/${name.replace(/pikchr$/, "svg")}`);
}
