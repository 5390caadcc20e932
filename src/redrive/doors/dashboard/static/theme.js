// Runs before the first paint, so that the chosen theme does not flash.
(() => {
  try {
    const chosen = localStorage.getItem("redrive-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* no storage here: the system's choice stands */ }
})();
