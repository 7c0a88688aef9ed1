// Light or dark: the system's wish, unless the person has chosen. Runs before the first paint, so that a chosen
// theme does not flash in late; that is why it is no module.
(() => {
  const NAME = "paceline-theme";
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // storage is switched off: the choice lasts as long as the page
    }
  }

  function shown() {
    const chosen = root.dataset.theme;
    if (chosen) return chosen;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  function toggle() {
    root.dataset.theme = shown() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(NAME, root.dataset.theme);
    } catch {
      // as above
    }
  }

  const chosen = stored();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  addEventListener("DOMContentLoaded", () => document.getElementById("theme").addEventListener("click", toggle));
})();
