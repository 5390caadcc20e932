// Draws what the server put into data-plot: {x: [seconds], series: [{name, kind, values}]}. Redrawn when that changes.
const drawn = new WeakMap();

/** A custom property with light-dark() in it, as a colour that a canvas understands. */
function paint(host, name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  host.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function tip(host) {
  const box = document.createElement("div");
  box.className = "plot-tip";
  box.hidden = true;
  return {
    hooks: {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const at = plot.cursor.idx;
        box.hidden = at == null;
        if (at == null) return;
        const when = new Date(plot.data[0][at] * 1000).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit" });
        box.textContent = `${when} · ${plot.series.slice(1).map((each, index) => `${plot.data[index + 1][at] ?? 0} ${each.label}`).join(", ")}`;
        const left = Math.min(plot.cursor.left + 12, plot.over.clientWidth - box.offsetWidth - 4);
        box.style.left = `${Math.max(left, 0)}px`;
        box.style.top = "0px";
      },
    },
  };
}

function options(host, data) {
  const ink = paint(host, "ink-2");
  const line = paint(host, "line");
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", hour12: false });
  const day = new Intl.DateTimeFormat([], { weekday: "short" });
  const label = (at) => { const when = new Date(at * 1000); return when.getHours() || when.getMinutes() ? clock.format(when) : day.format(when); };
  return {
    width: host.clientWidth, height: host.clientHeight, padding: [6, 18, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
    legend: { show: false },
    scales: { y: { range: (_, least, most) => [0, Math.max(most * 1.12, 4.4)] } },
    axes: [
      { ...axis, grid: { show: false }, size: 24, gap: 4, space: 64, values: (_, ats) => ats.map(label) },
      { ...axis, size: 38, gap: 4, space: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6] },
    ],
    series: [{}, ...data.series.map((each) => ({
      label: each.name, stroke: paint(host, each.kind), width: 1.5, points: { show: false },
      fill: each.fill ? paint(host, each.kind).replace(/^rgb\((.*)\)$/, "rgba($1, 0.10)") : undefined,
      dash: each.dash ? [4, 3] : undefined,
    }))],
    plugins: [tip(host)],
  };
}

function draw(host) {
  const text = host.dataset.plot;
  const known = drawn.get(host);
  if (known?.text === text) return;
  const data = JSON.parse(text);
  const columns = [data.x, ...data.series.map((each) => each.values)];
  if (known) {
    known.text = text;
    known.plot.setData(columns);
    return;
  }
  host.replaceChildren();
  drawn.set(host, { text, plot: new uPlot(options(host, data), columns, host) });
}

function redraw() {
  for (const host of document.querySelectorAll("[data-plot]")) {
    drawn.get(host)?.plot.destroy();
    drawn.delete(host);
    draw(host);
  }
}

export function startPlots() {
  if (typeof uPlot === "undefined") return;
  const all = () => document.querySelectorAll("[data-plot]").forEach(draw);
  all();
  document.addEventListener("htmx:after:swap", all);
  document.addEventListener("redrive:theme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const known = drawn.get(target);
      if (known && known.plot.width !== target.clientWidth) known.plot.setSize({ width: target.clientWidth, height: target.clientHeight });
    }
  });
  document.querySelectorAll("[data-plot]").forEach((host) => sizes.observe(host));
}
