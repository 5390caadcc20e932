// Browsers open dialogs by themselves (command, commandfor); older ones get the same from here. A form that was sent
// closes its dialog; one that was refused keeps it, with what was written, and says why.
const LOST = "The server cannot be reached. Nothing is known to have changed; try again.";

function problemOf(answer, text) {
  if (answer.status === 401) return "Not done: this browser no longer has the token. Open the link that redrive serve shows.";
  let said = "";
  try { ({ detail: said = "" } = JSON.parse(text)); } catch { /* not a problem in JSON: the status must do */ }
  return `Not done: the server answered ${answer.status}. ${said}`.trim();
}

function tell(form, text) {
  const dialog = form.closest("dialog");
  const place = dialog?.open ? form : document.getElementById("flash");
  place.querySelector("[data-problem]")?.remove();
  const line = document.createElement("p");
  line.className = "flash flash-bad";
  line.dataset.problem = "";
  line.setAttribute("role", "alert");
  line.textContent = text;
  if (dialog?.open) form.querySelector(".dialog-actions").before(line);
  else place.replaceChildren(line);
}

function opened(event) {
  const button = event.target.closest("button[commandfor]");
  if (!button) return;
  const dialog = document.getElementById(button.getAttribute("commandfor"));
  if (button.getAttribute("command") === "show-modal") dialog?.showModal();
  else dialog?.close();
}

/** A menu closes when something else is clicked or chosen, and on Escape; without scripts its own button closes it. */
function closeMenus(event) {
  for (const menu of document.querySelectorAll("details[data-menu][open]")) {
    const escaped = event.key === "Escape";
    if (event.type === "keydown" ? !escaped : menu.querySelector("summary").contains(event.target)) continue;
    menu.open = false;
    if (escaped && menu.contains(document.activeElement)) menu.querySelector("summary").focus();
  }
}

const acts = (event) => event.target.matches?.("form");

export function startDialogs() {
  if (!("commandForElement" in HTMLButtonElement.prototype)) document.addEventListener("click", opened);
  document.addEventListener("click", closeMenus);
  document.addEventListener("keydown", closeMenus);
  document.addEventListener("click", (event) => event.target.closest("[data-dismiss]")?.parentElement.remove());
  document.addEventListener("htmx:after:request", (event) => {
    if (!acts(event)) return;
    const { response, text } = event.detail.ctx;
    if (response.status < 400) event.target.closest("dialog")?.close();
    else tell(event.target, problemOf(response, text));
  });
  document.addEventListener("htmx:error", (event) => { if (acts(event)) tell(event.target, LOST); });
  document.addEventListener("close", (event) => {
    event.target.querySelector?.("[data-problem]")?.remove();
    event.target.querySelector?.("form")?.reset();
  }, true);
}
