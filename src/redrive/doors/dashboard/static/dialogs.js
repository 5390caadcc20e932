// Browsers open dialogs by themselves (command, commandfor). Older ones get the same from here, and flash lines close.
export function startDialogs() {
  const byItself = "commandForElement" in HTMLButtonElement.prototype;
  document.addEventListener("click", (event) => {
    const dismiss = event.target.closest("[data-dismiss]");
    if (dismiss) dismiss.parentElement.remove();
    const button = event.target.closest("button[commandfor]");
    if (!button || byItself) return;
    const dialog = document.getElementById(button.getAttribute("commandfor"));
    if (button.getAttribute("command") === "show-modal") dialog?.showModal();
    else dialog?.close();
  });
  // A form that was sent closes the dialog it stands in: the page says what happened.
  document.addEventListener("htmx:after:request", (event) => event.target.closest?.("dialog")?.close());
  document.addEventListener("close", (event) => event.target.querySelector?.("form")?.reset(), true);
}
