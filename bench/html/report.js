// Niceties only: without this script the page says the same.
"use strict";

(() => {
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];

  // A page opened from a file may have no storage.
  const stored = (key, value) => {
    try {
      if (value !== undefined) localStorage.setItem(key, value);
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  };

  const themeButton = document.getElementById("theme");
  const showTheme = (theme) => {
    root.dataset.theme = theme;
    themeButton.textContent = `Theme: ${theme}`;
  };
  showTheme(themes.includes(stored("theme")) ? stored("theme") : "auto");
  themeButton.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    stored("theme", next);
    showTheme(next);
  });
  themeButton.hidden = false;

  const download = document.getElementById("download");
  download.addEventListener("click", () => {
    const json = document.getElementById("document").textContent;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([json], { type: "application/json" }));
    link.download = "report.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  download.hidden = false;

  // A click on a column's title sorts the rows of each group by it, a second click the other way.
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return NaN;
    return cell.dataset.value !== undefined ? Number(cell.dataset.value) : cell.textContent.trim();
  };
  const isNothing = (key) => key === "–" || Number.isNaN(key);
  const compare = (a, b, direction) => {
    if (isNothing(a) || isNothing(b)) return isNothing(a) - isNothing(b);
    if (typeof a === "number" && typeof b === "number") return direction * (a - b);
    return direction * String(a).localeCompare(String(b), undefined, { numeric: true });
  };
  for (const header of document.querySelectorAll("thead th")) {
    // Not <button>: Chromium then no longer repeats the head of a table on every printed page.
    const button = document.createElement("span");
    button.tabIndex = 0;
    button.setAttribute("role", "button");
    button.append(...header.childNodes);
    header.append(button);
    button.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      button.click();
    });
    button.addEventListener("click", () => {
      const descending = header.getAttribute("aria-sort") === "ascending";
      for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      for (const body of header.closest("table").tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
        rows.sort((a, b) => compare(keyOf(a, header.cellIndex), keyOf(b, header.cellIndex),
                                    descending ? -1 : 1));
        body.append(...rows);
      }
    });
  }
})();
