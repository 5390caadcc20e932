// Keys for people who keep their hands on the keyboard. Nothing happens while somebody writes or a dialog is open.
const writing = (element) => element?.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
const rows = () => [...document.querySelectorAll("[data-row]")].filter((row) => row.offsetParent !== null);
const current = () => document.querySelector("[data-cursor]");

function moveTo(row) {
  current()?.removeAttribute("data-cursor");
  if (!row) return;
  row.setAttribute("data-cursor", "");
  row.scrollIntoView({ block: "nearest" });
  (row.querySelector("[data-open]") ?? row.querySelector("a"))?.focus({ preventScroll: true });
}

function step(by) {
  const all = rows();
  const at = all.indexOf(current());
  moveTo(all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)]);
}

function select() {
  const box = current()?.querySelector("input[type=checkbox]");
  if (!box) return;
  box.checked = !box.checked;
  box.dispatchEvent(new Event("change", { bubbles: true }));
}

let going = 0;
function go(key) {
  going = 0;
  document.querySelector(`[data-go="${CSS.escape(key)}"]`)?.click();
}

/** Whether there was something to do; then the key is used up, and not written into the field of a dialog that opened. */
function act(key) {
  const button = document.querySelector(`button[data-key="${CSS.escape(key)}"]:not(:disabled)`);
  button?.click();
  return Boolean(button);
}

function pressed(key) {
  if (key === "j") step(1);
  else if (key === "k") step(-1);
  else if (key === "x") select();
  else if (key === "g") going = Date.now();
  else if (key === "p") document.getElementById("live-toggle")?.click();
  else if (key === "f") document.querySelector("[data-find]")?.focus();
  else if (key === "?") document.getElementById("keys").showModal();
  else if (key === "/") document.querySelector("[data-filter], .filters input:not([type=hidden]), .filters select")?.focus();
  else return act(key);
  return true;
}

export function startKeys() {
  const strip = document.querySelector(".nav");
  const here = strip?.querySelector("[aria-current]");
  if (here) strip.scrollLeft = here.offsetLeft - strip.clientWidth / 3; // on a phone the pages are a strip
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && writing(event.target) && !event.target.closest("dialog")) return event.target.blur();
    if (writing(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter") {
      const row = current();
      const open = row?.querySelector("[data-open]") ?? row?.querySelector("a");
      if (open && !event.target.closest("a, button, summary, input")) open.click();
      return;
    }
    if (event.key.length !== 1) return;
    if (going && Date.now() - going < 1500) { event.preventDefault(); return go(event.key); }
    going = 0;
    if (pressed(event.key)) event.preventDefault();
  });
}
