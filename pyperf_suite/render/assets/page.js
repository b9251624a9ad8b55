"use strict";
(() => {
  const root = document.documentElement;
  const pictures = [...document.querySelectorAll(".picture")];
  const symbols = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "star", "x"];
  const drawn = new Set();
  document.querySelectorAll("details.values").forEach((each) => { each.open = false; });
  let plotly = null;

  // Plotly takes some tags in a text for its own: what comes from records is shown as it stands.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const colourOf = (key) => colour(key === "baseline" ? "baseline" : "c" + key);

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function load() {
    plotly ??= (async () => {
      const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const script = document.createElement("script");
      script.textContent = await new Response(stream).text();
      document.head.append(script);
    })();
    return plotly;
  }

  function axis(more) {
    return {
      gridcolor: colour("grid"), linecolor: colour("edge"), zeroline: false, automargin: true,
      tickfont: { color: colour("quiet"), size: 11 }, ...more,
    };
  }

  function titled(text) {
    return { text: plain(text), standoff: 8, font: { color: colour("ink"), size: 12 } };
  }

  function layout(more) {
    const touch = matchMedia("(pointer: coarse)").matches;
    return {
      margin: { l: 8, r: 32, t: 8, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false, dragmode: touch ? false : "zoom", hovermode: "closest",
      font: { family: getComputedStyle(document.body).fontFamily, color: colour("ink") },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 }, align: "left" },
      ...more,
    };
  }

  const short = (value) => (value === null || value === undefined ? "" : String(Number(Number(value).toPrecision(4))));

  function chart(data, hidden) {
    const many = data.traces.length;
    const traces = data.traces.map((each, number) => {
      const unfit = data.unfit[number];
      const named = data.ticks.length ? new Map(data.ticks.map(([x, name]) => [x, name])) : new Map();
      const words = each.x.map((x, i) => {
        const interval = each.low.length ? ` [${short(each.low[i])}, ${short(each.high[i])}]` : "";
        const note = each.notes[i] ? "<br>" + plain(each.notes[i]) : "";
        const predicted = each.style === "line" ? " (predicted)" : "";
        return `<b>${plain(each.label)}</b>${predicted}<br>${plain(data.x_label)} ${plain(named.get(x) ?? short(x))}` +
          `<br>${plain(data.y_label)} ${short(each.y[i])}${interval}${note}`;
      });
      const trace = {
        type: "scatter", name: plain(each.label), x: each.x, y: each.y, text: words, hoverinfo: "text",
        visible: !hidden.has(each.label), line: { color: colourOf(each.colour), width: 2 },
        marker: { color: colourOf(each.colour), size: many > 6 ? 5 : 6, symbol: symbols[each.colour % 8] ?? "x" },
      };
      if (each.style === "points") {
        trace.mode = "markers";
        if (each.low.length) {
          trace.marker.symbol = unfit.map((is) => symbols[each.colour % 8] + (is ? "-open" : ""));
          trace.error_y = {
            type: "data", symmetric: false, thickness: 1, width: 0, color: colourOf(each.colour),
            array: each.high.map((high, i) => unfit[i] ? 0 : Math.max(0, high - each.y[i])),
            arrayminus: each.low.map((low, i) => unfit[i] ? 0 : Math.max(0, each.y[i] - low)),
          };
        }
      } else {
        trace.mode = "lines";
        if (each.style === "baseline") trace.line = { ...trace.line, dash: "dash", width: 1.5 };
      }
      return trace;
    });
    const vertical = (dash) => (x) => ({
      type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below",
      line: { color: colour("edge"), width: 1, dash }, opacity: 0.6,
    });
    const scaled = (title, range, log) =>
      axis({ title: titled(title), range: log ? range.map(Math.log10) : range, type: log ? "log" : "linear" });
    const across = scaled(data.x_title, data.x_range, data.log);
    if (data.ticks.length) {
      across.tickvals = data.ticks.map(([x]) => x);
      across.ticktext = data.ticks.map(([, name]) => plain(name));
    }
    const shapes = [...data.strong_edges.map(vertical("solid")), ...data.weak_edges.map(vertical("dot"))];
    const annotations = data.verdict ? [{
      text: plain(data.verdict).replace(": ", ":<br>"), xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false,
      font: { color: colour("bad"), size: 13 }, bgcolor: colour("card"),
    }] : [];
    return [traces, layout({ xaxis: across, yaxis: scaled(data.y_label, data.y_range, data.y_log), shapes, annotations })];
  }

  function map(data) {
    const words = data.values.map((row, j) => row.map((value, i) =>
      value === null ? "none" : `${plain(data.x_label)} ${data.x[i]}<br>${plain(data.y_label)} ${data.y[j]}` +
        `<br>${plain(data.value_label)} <b>${short(value)}</b>`));
    const cells = data.x.length * data.y.length;
    const trace = {
      type: "heatmap", z: data.values, x: data.x.map((_, i) => i), y: data.y.map((_, i) => i), text: words, hoverinfo: "text",
      zmin: 1 - data.spread, zmax: 1 + data.spread, xgap: 1, ygap: 1, showscale: false,
      colorscale: [[0, colour("low")], [0.5, colour("middle")], [1, colour("high")]],
    };
    const annotations = cells > 240 ? [] : data.values.flatMap((row, j) => row.flatMap((value, i) => value === null ? [] : [{
      x: i, y: j, text: value.toFixed(2), showarrow: false,
      font: { size: 10, color: colour(Math.abs(value - 1) / data.spread > 0.55 ? "on-dark" : "in-cell") },
    }]));
    const places = (names, most) => {
      const every = Math.max(1, Math.ceil(names.length / most));
      const chosen = names.map((_, i) => i).filter((i) => i % every === 0);
      return { tickvals: chosen, ticktext: chosen.map((i) => String(names[i])), showgrid: false };
    };
    return [[trace], layout({
      xaxis: axis({ title: titled(data.x_label), ...places(data.x, 24) }),
      yaxis: axis({ title: titled(data.y_label), ...places(data.y, 30) }), annotations, plot_bgcolor: colour("none"),
    })];
  }

  function bars(data) {
    const rows = data.names.map((_, i) => i);
    const words = rows.map((i) => `<b>${plain(data.names[i])}</b><br>` + (data.values[i] === null ? plain(data.notes[i] || "no value")
      : `${plain(data.label || data.x_label)} ${short(data.values[i])}` + (data.errors[i] === null ? "" : ` ± ${short(data.errors[i])}`)) +
      (data.marks[i] === null ? "" : `<br>${plain(data.mark_label || "mark")} ${short(data.marks[i])}`));
    const traces = [{
      type: "bar", orientation: "h", x: data.values, y: rows, text: words, textposition: "none", hoverinfo: "text",
      marker: { color: colour("c0") }, error_x: { type: "data", array: data.errors, color: colour("ink"), thickness: 1.2, width: 3 },
    }, {
      type: "scatter", mode: "markers", x: data.marks, y: rows, text: words, hoverinfo: "text",
      marker: { color: colour("c1"), symbol: "line-ns-open", size: 16, line: { width: 3, color: colour("c1") } },
    }];
    const annotations = rows.filter((i) => data.values[i] === null).map((i) => ({
      x: 0, y: i, text: plain(data.notes[i] || "no value"), showarrow: false, xanchor: "left", font: { color: colour("quiet"), size: 11 },
    }));
    return [traces, layout({
      xaxis: axis({ title: titled(data.x_label), range: data.x_range }), annotations,
      yaxis: axis({ tickvals: rows, ticktext: data.names.map(plain), autorange: "reversed", showgrid: false }),
    })];
  }

  const makers = { chart, map, bars };

  function hiddenIn(picture) {
    const buttons = picture.closest("figure")?.querySelectorAll('.series[aria-pressed="false"]') ?? [];
    return new Set([...buttons].map((button) => button.dataset.series));
  }

  async function draw(picture) {
    if (drawn.has(picture)) return;
    drawn.add(picture);
    try { await load(); } catch { /* an old browser, or one that forbids it */ }
    if (!window.Plotly) {
      picture.hidden = true;
      picture.closest("figure").querySelectorAll(".values").forEach((each) => { each.open = true; });
      return;
    }
    const live = document.createElement("div");
    live.className = "live";
    picture.classList.add("drawn");
    picture.append(live);
    await redraw(picture);
  }

  async function redraw(picture) {
    const live = picture.querySelector(".live");
    if (!live) return;
    const data = JSON.parse(picture.closest(".panel").querySelector(".data").textContent);
    const [traces, look] = makers[data.kind](data, hiddenIn(picture));
    await Plotly.react(live, traces, look, {
      responsive: true, displayModeBar: false,
    });
    live.dataset.ready = "";
  }

  function redrawAll() {
    drawn.forEach((picture) => redraw(picture));
  }

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("pyperf-theme", root.dataset.theme); } catch { /* a file may have no storage */ }
    redrawAll();
  });
  try {
    const kept = localStorage.getItem("pyperf-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* as above */ }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);

  document.addEventListener("click", (event) => {
    const series = event.target.closest?.(".series");
    if (series) toggle(series);
    const reset = event.target.closest?.(".reset");
    if (reset) reset.closest("figure").querySelectorAll(".picture").forEach((picture) => redraw(picture));
    const sort = event.target.closest?.(".sort");
    if (sort) sortBy(sort.closest("th"));
  });

  function toggle(button) {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    const figure = button.closest("figure");
    figure.querySelectorAll(".picture").forEach((picture) => redraw(picture));
  }

  function sortBy(head) {
    const table = head.closest("table");
    const column = [...head.parentElement.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    [...head.parentElement.children].forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const key = (row) => row.cells[column]?.dataset.value ?? row.cells[column]?.textContent ?? "";
    const compare = (a, b) => Number(a) - Number(b) || a.localeCompare(b, "en", { numeric: true });
    const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)));
    body.append(...(down ? rows.reverse() : rows));
  }

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      links.forEach((link) => link.classList.remove("current"));
      links.get(entry.target.id)?.classList.add("current");
    });
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("main section").forEach((section) => seen.observe(section));

  if (matchMedia("(max-width: 920px)").matches) document.querySelector("nav details").open = false;
  // Paper is light, every fold on it open, and a figure that is not drawn yet shows its values.
  let theme;
  addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    document.querySelectorAll("main details:not(.values)").forEach((each) => { each.open = true; });
    document.querySelectorAll("figure:has(.picture:not(.drawn)) > .values").forEach((each) => { each.open = true; });
    redrawAll();
  });
  addEventListener("afterprint", () => {
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    redrawAll();
  });

  const later = window.requestIdleCallback ?? ((each) => setTimeout(each, 200));
  async function drawRest() {
    const next = pictures.find((each) => !drawn.has(each));
    if (!next) return;
    await draw(next);
    later(drawRest);
  }

  const near = new IntersectionObserver((entries) => {
    entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
      near.unobserve(entry.target);
      draw(entry.target);
    });
  }, { rootMargin: "400px 0px" });
  pictures.forEach((picture) => near.observe(picture));
  later(drawRest);
})();
