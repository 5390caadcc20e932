// Choosing letters, and editing one. Both pages work without this file; it counts, selects ranges and tidies up.
let last = null;

const boxes = (form) => [...form.querySelectorAll("input[name=ids]")];

function show(form) {
  const picked = boxes(form).filter((box) => box.checked).length;
  const all = form.querySelector("[data-all]").checked;
  const whole = form.querySelector("[data-select-all]");
  form.querySelector("[data-selected]").textContent = all ? "Acts on" : picked ? `${picked} selected` : "Nothing selected";
  form.querySelectorAll("button[name=verb]").forEach((button) => { button.disabled = !all && !picked; });
  whole.checked = picked > 0 && picked === boxes(form).length;
  whole.indeterminate = picked > 0 && !whole.checked;
  form.toggleAttribute("data-some", all || picked > 0);
}

function changed(event) {
  const form = event.target.closest("[data-bulk]");
  if (!form) return;
  if (event.target.matches("[data-select-all]")) boxes(form).forEach((box) => { box.checked = event.target.checked; });
  if (event.target.matches("input[name=ids], [data-select-all]")) form.querySelector("[data-all]").checked = false;
  if (event.target.matches("[data-all]") && event.target.checked) boxes(form).forEach((box) => { box.checked = false; });
  show(form);
}

function clicked(event) {
  const box = event.target.closest("input[name=ids]");
  if (box) {
    const all = boxes(box.form);
    if (event.shiftKey && last && all.includes(last)) {
      const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((a, b) => a - b);
      all.slice(from, to + 1).forEach((each) => { each.checked = box.checked; });
    }
    last = box;
  }
  if (event.target.closest("[data-format]")) tidy();
}

const editor = () => document.querySelector("textarea[data-json]");

/** A number stays as it is written: as one of JavaScript's, a long id would be rounded, and 1.0 be 1. */
const asWritten = (_, value, found) => (typeof value === "number" ? JSON.rawJSON(found.source) : value);

function tidy() {
  const area = editor();
  try {
    area.value = JSON.stringify(JSON.parse(area.value, asWritten), null, 2);
    area.dispatchEvent(new Event("input", { bubbles: true }));
  } catch {
    area.focus(); // what is wrong with it stands beside it already
  }
}

// A redrive is judged a moment after its last job has moved, and the stream tells of jobs alone: look again until it is over.
const POLL = 1500;

function poll() {
  const live = document.getElementById("live-status").dataset.state === "live";
  if (live && !document.hidden && document.querySelector("[data-poll]")) {
    document.querySelector("[data-live]").dispatchEvent(new CustomEvent("refresh"));
  }
}

setInterval(poll, POLL);
document.addEventListener("change", changed);
document.addEventListener("click", clicked);
document.addEventListener("htmx:after:swap", () => document.querySelectorAll("[data-bulk]").forEach(show));
document.querySelectorAll("[data-bulk]").forEach(show);
document.querySelectorAll("[data-format]").forEach((button) => { button.hidden = !("rawJSON" in JSON); });
