// The timeline: the job's time, rounds, incidents and nodes, with one range of time for all.
const SPANS = DATA.goodput.spans;
const INCIDENTS = DATA.incidents;
const BANDS = [["time", 24], ["nodes", 30], ["rounds", 16], ["incidents", 18]];
const LANE = 18;

/** The use of each pixel column: the one that fills most of it, any recovery before training. */
function columns(low, high, width) {
  const seconds = Array.from({ length: width }, () => null);
  const per = (high - low) / width;
  let first = 0, last = SPANS.length;
  while (first < last) { const middle = (first + last) >> 1; if (SPANS[middle][1] <= low) first = middle + 1; else last = middle; }
  for (let place = first; place < SPANS.length && SPANS[place][0] < high; place++) {
    const [begin, end, use] = SPANS[place];
    const from = Math.max(0, Math.floor((begin - low) / per)), to = Math.min(width - 1, Math.floor((end - low) / per));
    for (let x = from; x <= to; x++) {
      const part = Math.min(end, low + (x + 1) * per) - Math.max(begin, low + x * per);
      const weight = part * (use === 0 ? 0.4 : 1);
      if (!seconds[x]) seconds[x] = [use, weight]; else if (weight > seconds[x][1]) seconds[x] = [use, weight];
    }
  }
  return seconds.map((each) => (each ? each[0] : -1));
}

function spanAt(at) {
  let first = 0, last = SPANS.length - 1;
  while (first <= last) {
    const middle = (first + last) >> 1;
    if (SPANS[middle][1] <= at) first = middle + 1; else if (SPANS[middle][0] > at) last = middle - 1; else return SPANS[middle];
  }
  return null;
}

function roundAt(at) {
  const rounds = DATA.places.rounds;
  for (let place = rounds.length - 1; place >= 0; place--) if (rounds[place][1] <= at) return rounds[place];
  return null;
}

/** Incidents near a time, the nearest first. */
function incidentsAt(at, tolerance) {
  return INCIDENTS.filter((each) => each.opened - tolerance <= at && (each.closed === null ? DATA.over ? each.opened : Infinity : each.closed) + tolerance >= at)
    .sort((a, b) => Math.abs(a.opened - at) - Math.abs(b.opened - at));
}

function timelineSection(openIncident) {
  const lanes = DATA.places.lanes;
  const involved = new Map();
  INCIDENTS.forEach((each) => each.nodes.forEach((node, place) => {
    if (!involved.has(node)) involved.set(node, []);
    involved.get(node).push([each, place === 0 && each.kind === "fault"]);
  }));
  const faulty = lanes.filter((lane) => involved.has(lane.node) || lane.lost.length);
  let onlyFaulty = lanes.length > 30 && faulty.length > 0, wanted = "", shown = [];
  const box = h("div", { class: "plot" });
  const tip = h("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const canvas = h("canvas", { "aria-hidden": "true" });
  const spacer = h("div", { class: "spacer" }, canvas);
  const scroller = h("div", { class: "lanes", tabindex: "0", role: "img", "aria-label": "Nodes over time; the tables of incidents and nodes have the same facts as text" }, spacer);
  const found = h("span", { class: "quiet", "aria-live": "polite" });
  const wrap = h("div", { class: "timeline", tabindex: "0", "aria-label": "Timeline. Arrow keys move, plus and minus zoom, 0 shows everything.", role: "group" }, box, scroller, tip);
  let plot = null;
  const columnCache = { key: "", use: [] };

  const useColumns = (width) => {
    const key = `${range[0]}|${range[1]}|${width}`;
    if (columnCache.key !== key) { columnCache.key = key; columnCache.use = columns(range[0] - BEGIN, range[1] - BEGIN, width); }
    return columnCache.use;
  };

  function drawBands(u) {
    const { ctx } = u, dpr = devicePixelRatio, colors = palette();
    const left = u.bbox.left, width = Math.round(u.bbox.width), low = range[0] - BEGIN, high = range[1] - BEGIN;
    const x = (at) => left + (at - low) / (high - low) * width;
    let top = u.bbox.top;
    ctx.save();
    ctx.textBaseline = "middle";
    for (const [name, size] of BANDS) {
      const height = size * dpr;
      ctx.fillStyle = colors.quiet;
      ctx.font = `${12 * dpr}px system-ui, sans-serif`;
      ctx.textAlign = "right";
      ctx.fillText(name, left - 8 * dpr, top + height / 2);
      ctx.save();
      ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
      if (name === "time") paintUses(ctx, useColumns(width), left, top, height, colors);
      else if (name === "nodes") paintWorld(ctx, x, top, height, colors);
      else if (name === "rounds") paintRounds(ctx, x, top, height, colors, dpr);
      else paintIncidents(ctx, x, top, height, colors, dpr);
      ctx.restore();
      top += height + 6 * dpr;
    }
    ctx.restore();
  }

  function paintUses(ctx, uses, left, top, height, colors) {
    for (let from = 0; from < uses.length;) {
      let to = from + 1;
      while (to < uses.length && uses[to] === uses[from]) to++;
      if (uses[from] >= 0) { ctx.fillStyle = colors[`use-${USES[uses[from]]}`]; ctx.fillRect(left + from, top, to - from, height); }
      from = to;
    }
  }

  function paintWorld(ctx, x, top, height, colors) {
    const rounds = DATA.places.rounds, most = Math.max(1, ...rounds.map((each) => each[5]));
    ctx.fillStyle = colors.curve;
    ctx.globalAlpha = 0.55;
    for (const [, , formed, , ended, nodes] of rounds) {
      if (formed === null) continue;
      const from = x(formed), to = x(ended === null ? END - BEGIN : ended), tall = height * nodes / most;
      ctx.fillRect(from, top + height - tall, Math.max(1, to - from), tall);
    }
    ctx.globalAlpha = 1;
  }

  function paintRounds(ctx, x, top, height, colors, dpr) {
    ctx.font = `${10 * dpr}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    let free = -Infinity;
    DATA.places.rounds.forEach(([number, planned, formed, , ended], place) => {
      const from = x(planned), to = x(ended === null ? END - BEGIN : ended);
      if (to < 0) return;
      ctx.fillStyle = place % 2 ? colors.line : colors.wait;
      if (to - from >= 1) ctx.fillRect(from, top, to - from, height);
      ctx.fillStyle = colors.text;
      const text = `${number}`, wide = ctx.measureText(text).width;
      if (to - from > wide + 6 * dpr && from > free) { ctx.fillText(text, Math.max(from, x(range[0] - BEGIN)) + 3 * dpr, top + height / 2); free = from + wide; }
    });
  }

  function paintIncidents(ctx, x, top, height, colors, dpr) {
    for (const each of INCIDENTS) {
      const at = x(each.opened), to = x(each.closed === null ? each.opened : each.closed);
      ctx.fillStyle = toneColor(each, colors);
      ctx.fillRect(at, top + height * 0.3, Math.max(2 * dpr, to - at), height * 0.4);
      glyph(ctx, at, top + height / 2, 5 * dpr, each.kind);
    }
  }

  // A fault is a diamond, a warning a triangle, a request a square, an opportunity a circle: not colour alone.
  function glyph(ctx, x, y, size, kind) {
    ctx.beginPath();
    if (kind === "fault") { ctx.moveTo(x, y - size); ctx.lineTo(x + size, y); ctx.lineTo(x, y + size); ctx.lineTo(x - size, y); }
    else if (kind === "warning") { ctx.moveTo(x, y - size); ctx.lineTo(x + size, y + size); ctx.lineTo(x - size, y + size); }
    else if (kind === "request") ctx.rect(x - size * 0.8, y - size * 0.8, size * 1.6, size * 1.6);
    else ctx.arc(x, y, size * 0.9, 0, 7);
    ctx.closePath();
    ctx.fill();
  }

  const toneColor = (each, colors) => (each.ended_job === "failed" || each.state === "exhausted" && each.kind === "fault" ? colors.bad :
    each.kind === "fault" ? colors["use-start"] : each.kind === "warning" ? colors.warn : colors.quiet);

  function drawLanes() {
    if (!plot) return;
    const dpr = devicePixelRatio, colors = palette();
    const wide = box.clientWidth, tall = scroller.clientHeight;
    canvas.width = Math.round(wide * dpr);
    canvas.height = Math.round(tall * dpr);
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${tall}px`;
    const ctx = canvas.getContext("2d");
    ctx.textBaseline = "middle";
    const left = plot.bbox.left, width = Math.round(plot.bbox.width), low = range[0] - BEGIN, high = range[1] - BEGIN;
    const x = (at) => left + (at - low) / (high - low) * width;
    const uses = useColumns(width);
    const first = Math.floor(scroller.scrollTop / LANE), last = Math.min(shown.length, first + Math.ceil(tall / LANE) + 1);
    for (let place = first; place < last; place++) {
      const lane = shown[place], top = (place * LANE - scroller.scrollTop) * dpr, height = (LANE - 5) * dpr;
      ctx.save();
      ctx.beginPath(); ctx.rect(left, top, width, LANE * dpr); ctx.clip();
      for (const [begin, end, does] of lane.stays) {
        const from = Math.max(left, x(begin)), to = Math.min(left + width, x(end));
        if (to < left || from > left + width) continue;
        if (does === 1) {
          const a = Math.max(0, Math.round(from - left)), b = Math.max(a + 1, Math.round(to - left));
          paintUses(ctx, uses.slice(a, b), left + a, top, height, colors);
        } else {
          paintOutside(ctx, does === 2, from, to, top + height / 2, colors, dpr);
        }
      }
      for (const [each, root] of involved.get(lane.node) || []) {
        if (!root) continue;
        const at = x(each.opened);
        if (at < left - 9 || at > left + width + 9) continue;
        ctx.fillStyle = colors.panel; glyph(ctx, at, top + height / 2, 6.5 * dpr, each.kind);
        ctx.fillStyle = toneColor(each, colors); glyph(ctx, at, top + height / 2, 4.5 * dpr, each.kind);
      }
      ctx.strokeStyle = colors.bad;
      ctx.lineWidth = 2 * dpr;
      for (const at of lane.lost) {
        const px = x(at), size = 4 * dpr, mid = top + height / 2;
        ctx.beginPath(); ctx.moveTo(px - size, mid - size); ctx.lineTo(px + size, mid + size); ctx.moveTo(px - size, mid + size); ctx.lineTo(px + size, mid - size); ctx.stroke();
      }
      ctx.restore();
      ctx.fillStyle = involved.has(lane.node) ? colors.text : colors.quiet;
      ctx.font = `${11 * dpr}px ui-monospace, monospace`;
      ctx.textAlign = "right";
      ctx.fillText(shortened(ctx, lane.node, left - 10 * dpr), left - 8 * dpr, top + height / 2);
    }
  }

  /** Thin: connected, in no world. Dashed: quarantined. */
  function paintOutside(ctx, quarantined, from, to, middle, colors, dpr) {
    ctx.strokeStyle = quarantined ? colors.out : colors.wait;
    ctx.lineWidth = 3 * dpr;
    ctx.setLineDash(quarantined ? [6 * dpr, 5 * dpr] : []);
    ctx.beginPath(); ctx.moveTo(from, middle); ctx.lineTo(Math.max(to, from + dpr), middle); ctx.stroke();
    ctx.setLineDash([]);
  }

  function shortened(ctx, text, width) {
    if (ctx.measureText(text).width <= width) return text;
    let kept = text;
    while (kept.length > 2 && ctx.measureText(`…${kept}`).width > width) kept = kept.slice(1);
    return `…${kept}`;
  }

  function refill() {
    const pool = onlyFaulty ? faulty : lanes;
    shown = wanted ? pool.filter((lane) => lane.node.toLowerCase().includes(wanted) || lane.host.toLowerCase().includes(wanted)) : pool;
    found.textContent = `${many(shown.length, "node")} of ${count(DATA.places.node_count)}`;
    spacer.style.height = `${shown.length * LANE}px`;
    scroller.style.height = `${Math.min(narrow.matches ? 216 : 324, Math.max(LANE, shown.length * LANE) + 2)}px`;
    drawLanes();
  }

  function pointed(event, inLanes) {
    const bounds = box.getBoundingClientRect(), dpr = devicePixelRatio;
    const px = event.clientX - bounds.left - plot.bbox.left / dpr;
    const wide = plot.bbox.width / dpr;
    if (px < 0 || px > wide) return null;
    const at = range[0] - BEGIN + px / wide * (range[1] - range[0]);
    const row = inLanes ? shown[Math.floor((event.clientY - scroller.getBoundingClientRect().top + scroller.scrollTop) / LANE)] : null;
    return { at, row, near: (range[1] - range[0]) / wide * 6 };
  }

  function hover(event, inLanes) {
    const place = pointed(event, inLanes);
    if (!place || (inLanes && !place.row)) { tip.hidden = true; return; }
    const lines = [h("b", null, `${moment(place.at)} UTC`)];
    if (place.row) {
      const stay = place.row.stays.find(([begin, end]) => begin <= place.at && end >= place.at);
      const does = stay ? ["waits, in no world", "in the world", "quarantined"][stay[2]] : "not in the job";
      lines.push(`${place.row.node} (${place.row.host}): ${does}`);
    }
    const span = spanAt(place.at), round = roundAt(place.at);
    if (span) lines.push(`${USES[span[2]]}: ${USE_TEXT[USES[span[2]]]}, ${took(span[1] - span[0])}${span[3] ? `, due to ${span[3]}` : ""}`);
    if (round) lines.push(`round ${round[0]}${round[5] ? `: ${many(round[5], "node")}, ${many(round[6], "rank")}` : ", not formed yet"}`);
    const near = incidentsAt(place.at, place.near).filter((each) => !place.row || each.nodes.includes(place.row.node));
    near.slice(0, 3).forEach((each) => lines.push(`${each.id} ${each.class}: ${each.what}`));
    clear(tip, lines.map((text) => h("div", null, text)));
    tip.hidden = false;
    const area = wrap.getBoundingClientRect();
    const left = Math.min(event.clientX - area.left + 14, area.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - area.top + 16}px`;
  }

  function click(event, inLanes) {
    const place = pointed(event, inLanes);
    const near = place && incidentsAt(place.at, place.near).filter((each) => !place.row || each.nodes.includes(place.row.node));
    if (near && near.length) openIncident(near[0].id);
  }

  chart(box, "The job's time, the number of nodes, rounds and incidents over time", () => "time", () => {
    const height = BANDS.reduce((sum, each) => sum + each[1] + 6, 0) + 62;
    const options = chartOptions(box, height, "time", (colors, axis, base) => ({
      axes: [{ ...axis, grid: { show: false } }, { ...axis, size: gutter(), splits: () => [], grid: { show: false }, ticks: { show: false } }],
      scales: { ...base.scales, y: { range: [0, 1] } },
      series: [{}, { show: false }],
      cursor: { ...base.cursor, y: false },
      hooks: { draw: [(u) => { plot = u; drawBands(u); }], ready: [(u) => { plot = u; }] },
    }));
    return [options, [[BEGIN, END], [null, null]]];
  }, (made) => {
    plot = made;
    plot.over.addEventListener("mousemove", (event) => hover(event, false));
    plot.over.addEventListener("mouseleave", () => { tip.hidden = true; });
    plot.over.addEventListener("click", (event) => click(event, false));
  });
  scroller.addEventListener("scroll", drawLanes);
  canvas.addEventListener("mousemove", (event) => hover(event, true));
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => click(event, true));
  wrap.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return; // the plain wheel scrolls the page
    event.preventDefault();
    const place = pointed(event, false);
    zoom(event.deltaY > 0 ? 1.25 : 0.8, place ? BEGIN + place.at : undefined);
  }, { passive: false });
  wrap.addEventListener("keydown", (event) => {
    const act = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6),
      "-": () => zoom(1.7), 0: () => setRange(BEGIN, END), Home: () => setRange(BEGIN, END),
      ArrowUp: () => { scroller.scrollTop -= LANE * 3; }, ArrowDown: () => { scroller.scrollTop += LANE * 3; } }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  rangeListeners.push(drawLanes);
  onRedraw(refill);
  const legend = SPANS.length ? h("ul", { class: "legend", "aria-label": "Colours of the time" }, USES.map((use) => h("li", { title: USE_TEXT[use] },
    h("span", { class: "swatch", css: { background: `var(--use-${use})` } }), use))) : null;
  const controls = h("div", { class: "controls" },
    h("button", { type: "button", onclick: () => zoom(0.5), "aria-label": "Zoom in" }, "+"),
    h("button", { type: "button", onclick: () => zoom(2), "aria-label": "Zoom out" }, "−"),
    h("button", { type: "button", onclick: () => setRange(BEGIN, END) }, "Whole job"),
    h("label", null, h("input", { type: "search", placeholder: "find a node", "aria-label": "Find a node", oninput: (event) => { wanted = event.target.value.trim().toLowerCase(); refill(); } })),
    h("label", null, h("input", { type: "checkbox", checked: onlyFaulty, onchange: (event) => { onlyFaulty = event.target.checked; refill(); } }), " only nodes with incidents"),
    found);
  const marks = h("p", { class: "note" }, "◆ fault ▲ warning ■ request ● opportunity × node lost. In the row of a node: coloured, in the world; thin line, waits; dashed, quarantined. Drag to zoom, double-click for the whole job, Ctrl or Shift with the wheel zooms at the pointer, a click opens an incident. Times are UTC.",
    DATA.goodput.shortest_s ? ` Stretches of up to ${took(DATA.goodput.shortest_s)} are not drawn.` : "",
    DATA.places.cut ? " Nodes changed too often to draw all: the later changes are missing." : "");
  return panel("timeline", "Timeline", controls, legend, wrap, marks);
}
