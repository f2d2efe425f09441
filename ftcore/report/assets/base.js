"use strict";
// Text of the log is untrusted: it reaches the page only through text nodes (h) and canvas text, never as markup.
const DATA = JSON.parse(document.getElementById("report-data").textContent);
const BEGIN = DATA.begin;
const END = Math.max(DATA.end, DATA.begin + 0.001);
const USES = DATA.goodput.uses.map((row) => row[0]);
const USE_TEXT = {
  productive: "new training steps", checkpoint: "training waits for a save", detect: "from the fault until it was noticed",
  decide: "choosing a plan, failed plans", stop: "stopping the workers", rendezvous: "waiting for nodes and the new world",
  start: "starting the workers", load: "loading the state", recompute: "steps computed again",
  idle: "no work, or not enough nodes", paused: "paused on request",
};
const narrow = window.matchMedia("(max-width: 700px)");
const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");

/** An element. Properties starting with "on" are listeners, "css" sets style properties, others are attributes. */
function h(tag, props, ...kids) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "css") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, kids);
  return node;
}

function add(node, kids) {
  for (const kid of kids.flat(Infinity)) {
    if (kid === null || kid === undefined || kid === false) continue;
    node.append(kid instanceof Node ? kid : document.createTextNode(String(kid)));
  }
}

function clear(node, ...kids) {
  node.replaceChildren();
  add(node, kids);
  return node;
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const palette = () => Object.fromEntries(
  [...USES.map((use) => `use-${use}`), "text", "quiet", "line", "bad", "warn", "good", "curve", "curve2", "panel", "wait", "out"]
    .map((name) => [name, color(name)]));

const count = (value) => Math.round(value).toLocaleString("en-US");
const many = (value, noun, plural) => `${count(value)} ${value === 1 ? noun : plural || noun + "s"}`;
const percent = (share) => `${(share * 100).toFixed(share < 0.0995 ? 2 : 1)}%`;

/** A duration, as ftctl writes it: 12 ms, 3.4 s, 2m05s, 1h02m03s, 3d04h. */
function took(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 119.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const pad = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)}m${pad(whole % 60)}s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)}h${pad(Math.floor(whole % 3600 / 60))}m${pad(whole % 60)}s`;
  return `${Math.floor(whole / 86400)}d${pad(Math.floor(whole % 86400 / 3600))}h`;
}

/** A time in UTC, from seconds since the beginning of the log. */
function moment(seconds, digits = 0) {
  const date = new Date((BEGIN + seconds) * 1000);
  if (Number.isNaN(date.getTime())) return "-";
  const text = date.toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, digits ? 20 + digits : 19)}`;
}

const gpuHours = (seconds) => (seconds / 3600).toLocaleString("en-US", { maximumFractionDigits: seconds < 360 ? 4 : seconds < 36000 ? 2 : 0 });
const money = (gpuS) => (DATA.goodput.price === null ? [] :
  [(gpuS / 3600 * DATA.goodput.price).toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 })]);
const PRICED = DATA.goodput.price === null ? [] : ["Cost"];

/** A table. Columns whose title ends with ">" are aligned to the right. Cells are text or nodes. */
function table(caption, titles, rows, className) {
  const right = titles.map((title) => title.endsWith(">"));
  const cell = (tag, place, kid, extra) => h(tag, { class: right[place] ? "right" : null, ...extra }, kid);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: className },
      h("caption", { class: "hidden" }, caption),
      h("thead", null, h("tr", null, titles.map((title, place) => cell("th", place, title.replace(/>$/, ""), { scope: "col" })))),
      h("tbody", null, rows.map((row) => h("tr", { class: row.tone },
        (row.cells || row).map((kid, place) => cell(place ? "td" : "th", place, kid, place ? {} : { scope: "row" })))))));
}

function panel(id, title, ...kids) {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), kids);
}

const note = (...kids) => h("p", { class: "note" }, kids);
const badge = (tone, text) => h("span", { class: `badge ${tone}` }, text);

/** A bar of parts [use, seconds, name or use], each as wide as its share; the same figures are in a table or a label. */
function useBar(parts, label) {
  const total = parts.reduce((sum, part) => sum + part[1], 0) || 1;
  return h("div", { class: "bar", role: "img", "aria-label": label },
    parts.filter((part) => part[1] > 0).map(([use, seconds, name = use]) => h("span", {
      class: "part", title: `${name}: ${took(seconds)} (${percent(seconds / total)})`,
      css: { "flex-grow": String(seconds / total), background: `var(--use-${use})` },
    }, seconds / total > 0.12 ? h("span", { class: `part-name on-${use}` }, name) : null)));
}

const redraws = [];
/** Call a function when the theme or the width changes. */
const onRedraw = (draw) => redraws.push(draw);
function redrawAll() { for (const draw of redraws) draw(); }
