// The live page of a job. Texts of the log are only ever set as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const RETRY_MS = [500, 10000]; // first and longest pause before the page connects again
const SILENT_MS = 15000; // the server says something every 5 s: after this long, the connection is dead
const KEY = "ftcore.page.token";

let token = "", view = null, lostAt = 0, reason = "", heardAt = 0;
let said = { state: "", incident: "", seq: 0, notices: "" };

// -- drawing

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

/** Make the children of a list those of the items: kept by key, so that readers and focus stay where they are. */
function sync(parent, items, keyOf, tag, fill) {
  const tagOf = typeof tag === "string" ? () => tag : tag;
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child) old.delete(key);
    else {
      child = document.createElement(tagOf(item));
      child.dataset.key = key;
    }
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
    fill(child, item);
  }
  for (const child of old.values()) child.remove();
}

function parts(element, ...tags) {
  while (element.children.length < tags.length) {
    const [tag, name] = tags[element.children.length].split(".");
    const child = document.createElement(tag);
    if (name) child.className = name;
    element.append(child);
  }
  return element.children;
}

function elapsed(seconds) {
  if (seconds === null) return "–";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 119.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  const two = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}h${two(minutes)}m${two(whole % 60)}s` : `${minutes}m${two(whole % 60)}s`;
}

function rows(parent, found) {
  const cells = found.flatMap((row) => [
    { tag: "dt", key: `dt ${row.name}`, text: row.name, tone: "" },
    { tag: "dd", key: `dd ${row.name}`, text: row.text, tone: row.tone },
  ]);
  sync(parent, cells, (cell) => cell.key, (cell) => cell.tag, (child, cell) => {
    setText(child, cell.text);
    setClass(child, cell.tone);
  });
}

function drawIncident(incident) {
  $("incident").hidden = !incident;
  if (!incident) return;
  const kind = incident.kind === "fault" ? incident.title : `${incident.kind}: ${incident.title}`;
  setText($("incident-title"), `Incident ${incident.id}, open for ${elapsed(incident.seconds)}: ${kind}`);
  setText($("incident-summary"), incident.summary);
  sync($("phases"), incident.phase_clocks, (phase) => phase.name, "li", (child, phase) => {
    setClass(child, phase.running ? "running" : "");
    setText(child, `${phase.name.replace("_", " ")} ${elapsed(phase.seconds)}${phase.running ? " …" : ""}`);
  });
  const found = [
    { name: "now", text: incident.doing, tone: "" },
    { name: "waits for", text: incident.waits, tone: "" },
    { name: "asked next", text: incident.next.join(", ") || "no other policy; the job ends", tone: "" },
    { name: "limit", text: incident.limit_text, tone: "" },
  ];
  rows($("incident-rows"), found.filter((row) => row.text));
  const answers = incident.answers.map((text, index) => ({ text, index }));
  sync($("asked"), answers, (answer) => `${incident.id}/${answer.index}`, "li", (child, answer) => setText(child, answer.text));
}

function drawNodes() {
  const living = view.groups.filter((group) => group.state !== "gone");
  const counts = living.map((group) => `${group.count} ${group.state}`).join(", ");
  const bar = $("bar");
  bar.hidden = !living.length;
  bar.setAttribute("aria-label", counts || "no nodes");
  sync(bar, living, (group) => group.state, "span", (child, group) => {
    setClass(child, group.tone);
    child.style.flexGrow = String(group.count);
  });
  sync($("groups"), view.groups, (group) => group.state, "li", (child, group) => {
    const [count, state, names] = parts(child, "span.count", "span", "span.names");
    setText(count, group.count.toLocaleString("en"));
    setText(state, group.state);
    setClass(state, group.tone);
    setText(names, group.names);
  });
  setText($("spares"), view.state === "waiting" ? "" : `Spares: ${view.spares}`);
  $("each").hidden = !view.nodes.length;
  sync($("nodes"), view.nodes, (node) => node.node, "tr", (child, node) => {
    const cells = parts(child, "th", "td", "td", "td.number", "td.number", "td.number", "td.number", "td", "td");
    cells[0].scope = "row";
    const heard = node.heard_s === null ? "–" : `${node.heard_s.toFixed(0)} s ago`;
    const texts = [node.node, node.state, node.note, node.step === null ? "–" : String(node.step), elapsed(node.step_s),
      elapsed(node.own_s), heard, node.rank_range, node.host];
    texts.forEach((text, index) => setText(cells[index], text));
    setClass(cells[1], node.tone);
  });
  setText($("more"), view.nodes_left_out ? `and ${view.nodes_left_out.toLocaleString("en")} more` : "");
}

function draw() {
  $("main").hidden = false;
  $("asking").hidden = true;
  document.title = `${view.state} – ${view.job} – ftcore`;
  setText($("job"), view.job);
  setText($("state"), view.state);
  setClass($("state"), `badge ${view.tone}`);
  setText($("moment"), `${view.time.slice(11, 19)} UTC`);
  sync($("notices"), view.notices, (notice) => notice.name, "li", (child, notice) => {
    setClass(child, notice.tone === "bad" ? "bad" : "");
    setText(child, `${notice.name}: ${notice.text}`);
  });
  drawIncident(view.open_incident);
  rows($("rows"), view.rows);
  drawNodes();
  sync($("events"), [...view.newest_events].reverse(), (event) => event.seq, "li", (child, event) => {
    const [time, text] = parts(child, "time", "span");
    time.dateTime = event.time;
    const today = event.time.slice(0, 10) === view.time.slice(0, 10);
    setText(time, today ? event.time.slice(11, 19) : event.time.slice(5, 16).replace("T", " "));
    setText(text, event.text);
    setClass(text, event.tone);
  });
  announce();
}

/** Tell a screen reader what changed: states and events, no clocks. */
function announce() {
  const incident = view.open_incident ? view.open_incident.id : "", notices = view.notices.map((notice) => notice.name).join();
  const newest = view.newest_events.length ? view.newest_events[view.newest_events.length - 1] : null;
  const found = [];
  if (said.state !== view.state) found.push(`The job is ${view.state}.`);
  if (notices !== said.notices) found.push(notices ? `Notice: ${notices}.` : "No notices any more.");
  if (said.incident && !incident) found.push(`Incident ${said.incident} is closed.`);
  if (newest && newest.seq > said.seq) found.push(newest.text);
  said = { state: view.state, incident, seq: newest ? newest.seq : 0, notices };
  if (found.length) setText($("announcer"), found.join(" "));
}

function drawConnection() {
  const box = $("connection");
  if (!lostAt) {
    box.hidden = true;
    return;
  }
  const since = new Date(lostAt).toISOString().slice(11, 19);
  let text = `No connection since ${since} UTC: ${reason}. What is below is of then; trying again.`;
  if (view && view.ended) text = `The job has ended, and its page is no longer served (since ${since} UTC).`;
  else if (view && view.master_hosts) text += ` After a change of the master, the page is served where the new one leads, on one of: ${view.master_hosts}.`;
  box.hidden = false;
  setText(box, text);
}

// -- the connection

async function connect() {
  const ending = new AbortController();
  heardAt = Date.now();
  const watch = setInterval(() => {
    if (Date.now() - heardAt > SILENT_MS) ending.abort();
  }, 1000);
  try {
    const answer = await fetch("events", { headers: token ? { Authorization: `Bearer ${token}` } : {}, signal: ending.signal, cache: "no-store" });
    if (answer.status === 401) return "refused";
    if (!answer.ok) throw new Error((await answer.text()).trim() || `HTTP status ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the server has closed the connection");
      heardAt = Date.now();
      buffer += value;
      const blocks = buffer.split("\n\n");
      buffer = blocks.pop();
      const last = blocks.filter((block) => block.includes("\ndata: ")).pop();
      if (last) take(last);
    }
  } catch (error) {
    reason = ending.signal.aborted ? "the server says nothing" : error.message === "Failed to fetch" ? "the server does not answer" : error.message;
    return "lost";
  } finally {
    clearInterval(watch);
    ending.abort();
  }
}

function take(block) {
  view = JSON.parse(block.slice(block.indexOf("\ndata: ") + 7));
  lostAt = 0;
  drawConnection();
  draw();
}

async function run() {
  let pause = RETRY_MS[0];
  for (;;) {
    const before = view;
    const how = await connect();
    if (how === "refused") {
      ask(token !== "");
      return;
    }
    if (view !== before) pause = RETRY_MS[0];
    if (!lostAt) lostAt = Date.now();
    drawConnection();
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, RETRY_MS[1]);
  }
}

function ask(wrong) {
  sessionStorage.removeItem(KEY);
  $("main").hidden = true;
  $("asking").hidden = false;
  $("refused").hidden = !wrong;
  setText($("state"), "token needed");
  setText($("here"), location.origin);
  $("token").focus();
}

$("asking").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value.trim();
  $("token").value = "";
  sessionStorage.setItem(KEY, token);
  run();
});

const given = /^#token=(.+)$/.exec(location.hash);
if (given) {
  sessionStorage.setItem(KEY, decodeURIComponent(given[1]));
  history.replaceState(null, "", location.pathname);
}
token = sessionStorage.getItem(KEY) || "";
run();
