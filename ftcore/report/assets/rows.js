// A list of any length: only the rows in view exist. Arrow keys, Page, Home and End move; Enter opens a row.
let listCount = 0;

/** `columns`: [title, class, text(row)]; `rows` are indexes or objects. Returns the node and a function that sets rows. */
function virtualList(label, columns, onOpen, tall) {
  const id = `list${++listCount}`;
  const spacer = h("div", { class: "spacer", role: "rowgroup" });
  const head = h("div", { class: "vrow vhead", role: "row" }, columns.map(([title, name]) => h("div", { class: name, role: "columnheader" }, title)));
  const body = h("div", { class: "vbody", tabindex: "0", role: "table", "aria-label": label }, spacer);
  let rows = [], active = -1, height = 0;
  const rowHeight = () => (narrow.matches ? 46 : 27);

  function draw() {
    height = rowHeight();
    spacer.style.height = `${rows.length * height}px`;
    body.style.height = `${Math.min(tall, rows.length * height) + 2}px`;
    body.setAttribute("aria-rowcount", String(rows.length));
    const first = Math.max(0, Math.floor(body.scrollTop / height) - 8);
    const last = Math.min(rows.length, Math.ceil((body.scrollTop + body.clientHeight) / height) + 8);
    spacer.replaceChildren();
    for (let place = first; place < last; place++) {
      const row = rows[place];
      spacer.append(h("div", { class: `vrow ${columns.tone ? columns.tone(row) : ""}${place === active ? " active" : ""}`, role: "row",
        id: `${id}-${place}`, "aria-rowindex": place + 1, "aria-selected": place === active ? "true" : null,
        css: { top: `${place * height}px`, height: `${height}px` },
        onclick: () => { active = place; draw(); onOpen(row); } },
        columns.map(([, name, text]) => h("div", { class: name, role: "cell" }, text(row)))));
    }
    if (active >= first && active < last) body.setAttribute("aria-activedescendant", `${id}-${active}`);
    else body.removeAttribute("aria-activedescendant");
  }

  function move(to) {
    if (!rows.length) return;
    active = Math.max(0, Math.min(rows.length - 1, to));
    if (active * height < body.scrollTop) body.scrollTop = active * height;
    else if ((active + 1) * height > body.scrollTop + body.clientHeight) body.scrollTop = (active + 1) * height - body.clientHeight;
    draw();
  }

  body.addEventListener("scroll", draw);
  body.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(body.clientHeight / height) - 1);
    const act = { ArrowDown: () => move(active + 1), ArrowUp: () => move(active - 1), PageDown: () => move(active + page),
      PageUp: () => move(active - page), Home: () => move(0), End: () => move(rows.length - 1),
      Enter: () => { if (active >= 0) onOpen(rows[active]); } }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  onRedraw(draw);
  return { node: h("div", { class: "vlist" }, head, body), set: (next) => { rows = next; active = -1; body.scrollTop = 0; draw(); } };
}

async function unpackedEvents() {
  const packed = Uint8Array.from(atob(document.getElementById("event-data").textContent), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const columns = JSON.parse(await new Response(stream).text());
  let seq = 0, ms = 0;
  columns.seq = columns.seq.map((by) => (seq += by));
  columns.ms = columns.ms.map((by) => (ms += by));
  return columns;
}

function eventsSection() {
  const counts = DATA.event_counts;
  const detail = h("div", { class: "detail", "aria-live": "polite", hidden: true });
  const found = h("span", { class: "quiet", "aria-live": "polite" });
  let events = null, low = [], filter = { text: "", type: "", incident: "", notable: false };
  const word = (name, place) => events.words[events[name][place]];
  const open = (place) => {
    clear(detail, h("div", { class: "quiet" }, `event ${events.seq[place]}, ${moment(events.ms[place] / 1000, 3)} UTC, ${word("type", place)}, from ${word("source", place)}`,
      word("incident", place) ? `, incident ${word("incident", place)}` : ""), h("pre", null, events.text[place]));
    detail.hidden = false;
  };
  const columns = [
    ["Event", "c-seq right", (place) => events.seq[place]],
    ["Time (UTC)", "c-time", (place) => moment(events.ms[place] / 1000, 3)],
    ["Type", "c-type", (place) => word("type", place)],
    ["Source", "c-source", (place) => word("source", place)],
    ["What", "c-what", (place) => events.text[place]],
  ];
  columns.tone = (place) => word("style", place);
  const list = virtualList("Events", columns, open, 480);
  const types = h("select", { "aria-label": "Type of events", onchange: (event) => { filter.type = event.target.value; apply(); } }, h("option", { value: "" }, "all types"));
  const search = h("input", { type: "search", placeholder: "search events", "aria-label": "Search events", oninput: (event) => { filter.text = event.target.value.trim().toLowerCase(); clearTimeout(search.timer); search.timer = setTimeout(apply, 120); } });
  const incident = h("input", { type: "search", size: "7", placeholder: "incident", "aria-label": "Incident, as i2", oninput: (event) => { filter.incident = event.target.value.trim(); apply(); } });
  const notable = h("input", { type: "checkbox", onchange: (event) => { filter.notable = event.target.checked; apply(); } });

  function apply() {
    if (!events) return;
    const kept = [];
    const type = filter.type ? events.words.indexOf(filter.type) : -1;
    const named = filter.incident ? events.words.indexOf(filter.incident) : -1;
    for (let place = 0; place < events.seq.length; place++) {
      if (filter.type && events.type[place] !== type) continue;
      if (filter.incident && events.incident[place] !== named) continue;
      if (filter.notable && !["bad", "warn", "good", "strong"].includes(word("style", place))) continue;
      if (filter.text) {
        if (low[place] === undefined) low[place] = `${events.seq[place]} ${word("type", place)} ${word("source", place)} ${events.text[place]}`.toLowerCase();
        if (!low[place].includes(filter.text)) continue;
      }
      kept.push(place);
    }
    list.set(kept);
    detail.hidden = true;
    found.textContent = `${count(kept.length)} of ${many(events.seq.length, "event")}`;
  }

  async function load() {
    try { events = await unpackedEvents(); }
    catch (error) { found.textContent = `This browser cannot unpack the events (${error.name}); ftctl events shows them.`; return; }
    [...new Set(events.type)].map((place) => events.words[place]).sort().forEach((type) => types.append(h("option", { value: type }, type)));
    apply();
  }

  const thinned = counts.shown < counts.total ? note(`The log has ${count(counts.total)} events; ${count(counts.shown)} are here: `,
    [["routine", "routine events (starts, steps, samples of progress)"], ["other", "other events"],
      ["landmarks", "incidents, failures, rounds, requests and notes"]]
      .map(([name, text]) => counts[name] > 1 ? `one in ${count(counts[name])} of the ${text}` : `all of the ${text}`).join(", ") + ". ",
    "ftctl events has all.") : null;
  return {
    node: panel("events", "Events", h("div", { class: "controls" }, search, types, incident, h("label", null, notable, " only what stands out"), found),
      thinned, list.node, detail, h("p", { class: "print-only" }, "The events are in the file itself: open it in a browser.")),
    load,
    show: (name) => {
      filter = { text: "", type: "", incident: name, notable: false };
      search.value = ""; types.value = ""; incident.value = name; notable.checked = false;
      apply();
      document.getElementById("events").scrollIntoView();
    },
  };
}
