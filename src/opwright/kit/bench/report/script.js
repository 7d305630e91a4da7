"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const all = (query, from = document) => [...from.querySelectorAll(query)];

  // Theme: the system's, or the one chosen here. A file opened from disk may not be allowed to remember.
  const theme = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const recall = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const choose = (name) => {
    if (name === "system") delete root.dataset.theme; else root.dataset.theme = name;
    theme.textContent = `theme: ${name}`;
    try { localStorage.setItem("theme", name); } catch { /* not allowed */ }
  };
  let chosen = themes.includes(recall()) ? recall() : "system";
  choose(chosen);
  theme.hidden = false;
  theme.addEventListener("click", () => {
    chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
    choose(chosen);
  });

  // One case of an operator at a time.
  for (const picker of all("select[data-cases]")) {
    const show = () => {
      for (const part of all(".case")) {
        if (part.dataset.of === picker.dataset.cases) part.hidden = part.id !== picker.value;
      }
    };
    picker.addEventListener("change", show);
    show();
  }

  // What a link leads to is unfolded; a printed page is so throughout.
  const unfold = (hash) => {
    const target = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    const fold = target && (target.querySelector(":scope > details.fold") ?? target.closest("details.fold"));
    if (fold) fold.open = true;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="#"]');
    if (link) unfold(link.getAttribute("href"));
  });
  unfold(location.hash);
  addEventListener("beforeprint", () => { for (const fold of all("details.fold")) fold.open = true; });

  // A tip beside what the pointer or the arrow keys are on; read aloud, since it is a live region.
  const tip = document.getElementById("tip");
  let marked = null;
  let byKeys = false;
  const hide = () => { tip.hidden = true; marked?.classList.remove("at"); marked = null; };
  const say = (element, keys) => {
    byKeys = keys;
    if (element === marked) return;
    hide();
    marked = element;
    if (element.classList.contains("mark")) element.classList.add("at");
    tip.textContent = element.dataset.tip;
    tip.hidden = false;
    place();
  };
  const place = () => {
    const box = marked.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2 - tip.offsetWidth / 2, 8), innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
  };
  document.addEventListener("pointerover", (event) => {
    const element = event.target.closest?.("[data-tip]");
    if (element) say(element, false); else if (marked && !byKeys) hide();
  });
  // The page scrolls under a resting pointer; what the keys are on stays chosen, wherever it moves to.
  addEventListener("scroll", () => { if (marked) { if (byKeys) place(); else hide(); } }, { passive: true });

  for (const chart of all("svg.chart")) {
    const points = () => all(".series:not(.off) .mark", chart);
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      const found = points();
      if (!found.length) return;
      const at = found.indexOf(marked);
      say(found[at < 0 ? (step > 0 ? 0 : found.length - 1) : (at + step + found.length) % found.length], true);
    });
    chart.addEventListener("blur", hide);
  }

  // A legend's buttons show and hide their series.
  for (const button of all("button[data-toggle]")) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      for (const series of all("[data-series]", button.closest("figure"))) {
        if (series.dataset.series === button.dataset.toggle) series.classList.toggle("off", !on);
      }
    });
  }
})();
