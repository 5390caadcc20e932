// Light, dark, or as the system says; kept on this browser.
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const WORDS = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };

export function startTheme() {
  const button = document.getElementById("theme-toggle");
  if (!button) return;
  const show = (theme) => { button.textContent = WORDS[theme]; };
  let theme = document.documentElement.dataset.theme ?? "auto";
  show(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = NEXT[theme];
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try { localStorage.setItem("redrive-theme", theme); } catch { /* it holds for this page alone */ }
    show(theme);
    document.dispatchEvent(new CustomEvent("redrive:theme"));
  });
}
