"use strict";
// Loaded before the page is drawn, so that it is drawn once.
{
  const root = document.documentElement;
  const shown = () => root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const chosen = localStorage.getItem("envweave-theme");
  if (chosen === "light" || chosen === "dark") root.style.colorScheme = chosen;
  window.toggleTheme = () => {
    root.style.colorScheme = shown() === "dark" ? "light" : "dark";
    localStorage.setItem("envweave-theme", root.style.colorScheme);
    window.dispatchEvent(new Event("themechange"));
  };
}
