// Runs before the page is painted, so that a chosen theme never flashes.
try {
  const theme = JSON.parse(localStorage.getItem("ridgeline.settings") ?? "{}").theme;
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is off, or holds something else */ }
