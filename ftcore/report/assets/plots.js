// Curves, by uPlot. Charts over time share one range and one cursor.
const timeCharts = [];
let range = [BEGIN, END];
let settingRange = false;
const rangeListeners = [];

function setRange(low, high) {
  const span = Math.max(high - low, 0.001);
  const whole = END - BEGIN;
  if (span >= whole) { low = BEGIN; high = END; }
  else {
    if (low < BEGIN) { high += BEGIN - low; low = BEGIN; }
    if (high > END) { low -= high - END; high = END; }
    low = Math.max(low, BEGIN);
  }
  range = [low, high];
  settingRange = true;
  for (const chart of timeCharts) chart.setScale("x", { min: low, max: high });
  settingRange = false;
  for (const listener of rangeListeners) listener();
}

function zoom(factor, center) {
  const [low, high] = range;
  const at = center === undefined ? (low + high) / 2 : center;
  setRange(at - (at - low) * factor, at + (high - at) * factor);
}

function pan(share) {
  const [low, high] = range;
  const by = (high - low) * share;
  const kept = Math.max(BEGIN - low, Math.min(END - high, by));
  setRange(low + kept, high + kept);
}

const DAY_TEXT = "\n{YYYY}-{MM}-{DD}", YEAR = 31536000;
/** Labels of the time axis: increment, usual label, and what is added when year, day or minute change. */
const TIME_LABELS = [
  [YEAR, "{YYYY}", null, null, null, null, null, null, 1], [2419200, "{YYYY}-{MM}", null, null, null, null, null, null, 1],
  [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1], [3600, "{HH}:{mm}", DAY_TEXT, null, DAY_TEXT, null, null, null, 1],
  [60, "{HH}:{mm}", DAY_TEXT, null, DAY_TEXT, null, null, null, 1], [1, "{HH}:{mm}:{ss}", DAY_TEXT, null, DAY_TEXT, null, null, null, 1],
  [0.001, ":{ss}.{fff}", `${DAY_TEXT} {HH}:{mm}`, null, `${DAY_TEXT} {HH}:{mm}`, null, "\n{HH}:{mm}", null, 1],
];

const gutter = () => (narrow.matches ? 62 : 130);

/** Options that all charts share. */
function chartOptions(box, height, over, more) {
  const colors = palette();
  const axis = { stroke: colors.quiet, grid: { stroke: colors.line, width: 1 }, ticks: { stroke: colors.line, width: 1 },
    font: "12px system-ui, sans-serif" };
  const base = {
    width: Math.max(240, box.clientWidth), height, legend: { show: false }, tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
    padding: [10, 30, 0, 0],
    scales: { x: { time: over === "time" } },
    cursor: { points: { size: 7 }, drag: { x: true, y: false, setScale: true }, ...(over === "time" ? { sync: { key: "time" } } : {}) },
  };
  const made = { ...base, ...more(colors, axis, base) };
  if (over === "time") Object.assign(made.axes[0], { values: TIME_LABELS, space: 80 });  // wider than HH:mm:ss
  return made;
}

/** A chart, drawn by redrawAll and again when theme or width change. `make` returns [options, data]; `made` gets the plot. */
function chart(box, label, over, make, made) {
  let plot = null;
  const draw = () => {
    if (plot) { timeCharts.splice(timeCharts.indexOf(plot) >>> 0, timeCharts.includes(plot) ? 1 : 0); plot.destroy(); }
    const [options, data] = make();
    if (over() === "time") {
      options.hooks = { ...options.hooks, setScale: [...(options.hooks && options.hooks.setScale || []), (u, key) => {
        if (key !== "x" || settingRange) return;
        const { min, max } = u.scales.x;
        if (min !== null && (min !== range[0] || max !== range[1])) setRange(min, max);
      }] };
      options.scales.x = { ...options.scales.x, auto: false, min: range[0], max: range[1] };
    }
    plot = new uPlot(options, data, box);
    plot.over.addEventListener("dblclick", () => { if (over() === "time") setRange(BEGIN, END); });
    if (over() === "time") timeCharts.push(plot);
    if (made) made(plot);
  };
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", label);
  onRedraw(draw);
  return draw;
}

/** A line of text that tells the values below the cursor; returns the hook. */
function readout(line, text) {
  return (u) => { line.textContent = u.cursor.idx === null || u.cursor.idx === undefined ? "" : text(u.cursor.idx); };
}

const number = (value) => (value === null || value === undefined ? "-" :
  Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(3) : String(Number(value.toPrecision(5))));

/** For each point [time, step, round, value] whether a later one has completed the same or an earlier step. */
function abandoned(points) {
  const found = new Array(points.length).fill(false);
  let low = Infinity;
  for (let place = points.length - 1; place >= 0; place--) {
    found[place] = points[place][1] >= low;
    low = Math.min(low, points[place][1]);
  }
  return found;
}

function verticalMarks(u, marks, stroke, label, row = 0) {
  const { ctx } = u;
  const dpr = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  ctx.clip();
  ctx.strokeStyle = ctx.fillStyle = stroke;
  ctx.lineWidth = dpr;
  ctx.font = `${11 * dpr}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  let last = -Infinity;
  for (const mark of marks) {
    const x = u.valToPos(mark.at, "x", true);
    if (x < u.bbox.left - 1 || x > u.bbox.left + u.bbox.width + 1) continue;
    ctx.setLineDash([4 * dpr, 3 * dpr]);
    ctx.beginPath();
    ctx.moveTo(x, u.bbox.top);
    ctx.lineTo(x, u.bbox.top + u.bbox.height);
    ctx.stroke();
    if (x - last > 70 * dpr) { ctx.fillText(label(mark), x + 3 * dpr, u.bbox.top + (11 + 14 * row) * dpr); last = x; }
  }
  ctx.restore();
}

function bands(u, parts, fill) {
  const { ctx } = u;
  ctx.save();
  ctx.fillStyle = fill;
  ctx.globalAlpha = 0.22;
  for (const [low, high] of parts) {
    const x = Math.max(u.bbox.left, u.valToPos(low, "x", true));
    const end = Math.min(u.bbox.left + u.bbox.width, u.valToPos(high, "x", true));
    if (end >= x) ctx.fillRect(x, u.bbox.top, Math.max(end - x, 2 * devicePixelRatio), u.bbox.height);
  }
  ctx.restore();
}

/** Buttons of which one is chosen. */
function choice(label, options, chosen, pick) {
  const buttons = options.map(([name, text]) => h("button", { type: "button", "aria-pressed": String(name === chosen),
    onclick: () => { buttons.forEach((each, place) => each.setAttribute("aria-pressed", String(options[place][0] === name))); pick(name); } }, text));
  return h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}
