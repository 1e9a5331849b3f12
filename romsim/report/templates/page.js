"use strict";
(() => {
  const root = document.documentElement;
  const errors = [];
  const fail = (text) => { errors.push(String(text)); root.dataset.errors = errors.join("\n"); };
  window.addEventListener("error", (event) => fail(event.message));
  window.addEventListener("unhandledrejection", (event) => fail(event.reason));

  // Plots, in the page's own colours: light, dark, and light again on paper.
  const figures = JSON.parse(document.getElementById("plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  const colours = (paper) => {
    const night = dark.matches && !paper;
    return { text: night ? "#e4e7ec" : "#1b1f24", soft: night ? "#9aa3af" : "#59616c",
             grid: night ? "#2e343d" : "#e3e6eb", card: night ? "#1b1f26" : "#ffffff" };
  };
  const themed = (paper) => {
    const c = colours(paper);
    const axis = (name) => ({ [`${name}.color`]: c.soft, [`${name}.gridcolor`]: c.grid,
      [`${name}.linecolor`]: c.grid, [`${name}.zerolinecolor`]: c.soft,
      [`${name}.tickfont.color`]: c.soft, [`${name}.title.font.color`]: c.text });
    return { "font.color": c.text, "legend.font.color": c.text, "hoverlabel.bgcolor": c.card,
             "hoverlabel.font.color": c.text, "hoverlabel.bordercolor": c.soft,
             "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": c.soft,
             "modebar.activecolor": c.text,
             ...axis("xaxis"), ...axis("yaxis") };
  };
  const spread = (layout, changes) => {
    for (const [path, value] of Object.entries(changes)) {
      const keys = path.split(".");
      if (keys[0].endsWith("axis") && !(keys[0] in layout)) continue;
      let at = layout;
      for (const key of keys.slice(0, -1)) at = at[key] ??= {};
      at[keys.at(-1)] = value;
    }
    return layout;
  };
  const family = getComputedStyle(document.body).fontFamily;
  const narrow = () => window.innerWidth < 640;
  const buttons = (data) => data[0].type === "treemap"
    ? [["toImage"]] : [["toImage"], ["zoom2d", "pan2d", "resetScale2d"]];
  const configured = (data) => ({ responsive: true, displaylogo: false, showTips: false,
    displayModeBar: coarse ? false : "hover", modeBarButtons: buttons(data) });
  const drawn = [];
  const draw = async () => {
    for (const element of document.querySelectorAll("[data-plot]")) {
      const { data, layout } = figures[element.dataset.plot];
      layout.font = { family, size: narrow() ? 11 : 12.5 };
      layout.dragmode = coarse ? false : "zoom";
      for (const trace of data) {
        if (trace.type === "treemap") trace.marker.line.color = colours(false).card;
      }
      await window.Plotly.newPlot(element, data, spread(layout, themed(false)), configured(data));
      drawn.push(element);
    }
    root.dataset.plots = String(drawn.length);
  };
  const repaint = (paper) => {
    for (const element of drawn) {
      const changes = themed(paper);
      for (const key of Object.keys(changes)) {
        const name = key.split(".")[0];
        if (name.endsWith("axis") && !(name in element.layout)) delete changes[key];
      }
      window.Plotly.relayout(element, changes);
    }
  };
  if (window.Plotly) draw().catch(fail);
  dark.addEventListener("change", () => repaint(false));

  // On paper short tables are open, and wide plots are scaled down, not drawn anew: a browser does
  // not wait for that.
  const sheet = 660;
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")]
      .filter((one) => one.querySelectorAll("tbody tr").length <= 40);
    for (const one of opened) one.open = true;
    if (dark.matches) repaint(true);
    for (const element of drawn) {
      element.style.zoom = String(Math.min(1, sheet / element._fullLayout.width));
    }
  });
  window.addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
    if (dark.matches) repaint(false);
    for (const element of drawn) element.style.zoom = "";
  });

  // Formula, source and grade of a figure: on hover, on focus, on a tap; Escape closes.
  const tip = document.getElementById("tip");
  let owner = null;
  const hide = () => {
    tip.hidden = true;
    owner?.removeAttribute("aria-describedby");
    owner = null;
  };
  const show = (element) => {
    hide();
    owner = element;
    tip.textContent = element.dataset.tip;
    tip.hidden = false;
    element.setAttribute("aria-describedby", "tip");
    const box = element.getBoundingClientRect();
    const left = Math.min(box.left, window.innerWidth - tip.offsetWidth - 12);
    const below = box.bottom + 8;
    const fits = below + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${fits ? below : Math.max(8, box.top - tip.offsetHeight - 8)}px`;
  };
  for (const kind of ["pointerover", "focusin", "click"]) {
    document.addEventListener(kind, (event) => {
      const element = event.target.closest?.("[data-tip]");
      if (element) show(element); else if (kind !== "focusin") hide();
    });
  }
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  window.addEventListener("scroll", hide, { passive: true });

  // The report's own JSON, from the copy inside the page.
  document.getElementById("json").addEventListener("click", (event) => {
    const text = document.getElementById("data").textContent;
    const link = event.currentTarget;
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  });
})();
