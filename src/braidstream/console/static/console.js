// Refreshes pages and follows streams. Pages work without it; it only saves the reload.
"use strict";

const part = (html) => new DOMParser().parseFromString(html, "text/html");

async function load(url) {
  const answer = await fetch(url, { credentials: "same-origin", signal: AbortSignal.timeout(10000) });
  if (answer.redirected && new URL(answer.url).pathname === "/login") {
    location.assign("/login");
    throw new Error("logged out");
  }
  if (!answer.ok) throw new Error(`the console answers ${answer.status}`);
  return part(await answer.text());
}

// The focus stays where it was, if what had it is there again.
function swap(old, fresh) {
  const focus = document.activeElement;
  const links = [...old.querySelectorAll("a, button, input, [tabindex]")];
  const at = links.indexOf(focus);
  const scrolled = [...old.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  old.replaceChildren(...document.importNode(fresh, true).childNodes);
  old.querySelectorAll(".scroll").forEach((each, number) => { each.scrollLeft = scrolled[number] || 0; });
  if (at >= 0) {
    const again = old.querySelectorAll("a, button, input, [tabindex]")[at];
    if (again) again.focus({ preventScroll: true });
  }
}

function every(seconds, box, state, work) {
  let busy = false;
  setInterval(async () => {
    if (busy || !box.checked || document.hidden) return;
    busy = true;
    try {
      await work();
      state.textContent = "";
    } catch (error) {
      state.textContent = `not refreshed: ${error.message}`;
    }
    busy = false;
  }, seconds * 1000);
}

const live = document.getElementById("live");
if (live) {
  every(Number(live.dataset.every), live, document.getElementById("live-state"), async () => {
    const page = await load(location.href);
    const fresh = page.getElementById("fresh");
    if (!fresh) throw new Error("the page is gone");
    // Text that is being selected would lose its selection.
    if (!String(getSelection())) swap(document.getElementById("fresh"), fresh);
  });
}

const tail = document.getElementById("tail");
if (tail) {
  const rows = tail.tBodies[0];
  const state = document.getElementById("tail-state");
  every(1, document.getElementById("tail-on"), state, async () => {
    const url = `${tail.dataset.url}&cursor=${encodeURIComponent(rows.dataset.cursor)}`;
    const found = (await load(url)).querySelector("tbody");
    rows.dataset.cursor = found.dataset.cursor;
    rows.prepend(...document.importNode(found, true).childNodes);
    while (rows.rows.length > 500) rows.deleteRow(-1);
    if (found.dataset.skipped !== "0") throw new Error(`${found.dataset.skipped} entries arrived too fast to show`);
  });
}

// A region chosen in a form shows at once. Buttons that only do that are for browsers without scripts.
document.documentElement.classList.add("js");

// On a phone the navigation is wider than the screen.
const here = document.querySelector("nav [aria-current]");
if (here) here.parentElement.scrollLeft = here.offsetLeft - 60;

document.querySelectorAll("form.bar select[name=region]").forEach((select) => {
  select.addEventListener("change", () => select.form.requestSubmit());
});

document.querySelectorAll("button[data-confirm]").forEach((button) => {
  button.addEventListener("click", (event) => {
    if (!confirm(button.dataset.confirm)) event.preventDefault();
  });
});

const all = document.getElementById("choose-all");
if (all) {
  all.closest("label").hidden = false;
  all.addEventListener("change", () => {
    all.form.querySelectorAll("input[name=id]").forEach((box) => { box.checked = all.checked; });
  });
}
