// The page: header, the four answers, then the sections.
const root = document.documentElement;

function remembered(value) {
  try { if (value === undefined) return localStorage.getItem("ftcore-report-theme"); localStorage.setItem("ftcore-report-theme", value); }
  catch { /* storage is off for files in some browsers */ }
  return null;
}

function setTheme(theme) {
  root.dataset.theme = theme === "auto" ? (wantsDark.matches ? "dark" : "light") : theme;
}

function header() {
  const { state } = DATA;
  let theme = remembered() || "auto";
  setTheme(theme);
  const themes = choice("Theme", [["auto", "auto"], ["light", "light"], ["dark", "dark"]], theme, (next) => { theme = next; remembered(next); setTheme(theme); redrawAll(); });
  wantsDark.addEventListener("change", () => { if (theme === "auto") { setTheme(theme); redrawAll(); } });
  const facts = [
    DATA.begin_text ? `${DATA.begin_text} to ${DATA.end_text} UTC${DATA.over || DATA.imported ? "" : ", still running when this report was made"}` : "an empty log",
    state.nodes ? `${many(state.nodes, "node")}, ${many(state.size, "rank")}` : null,
    state.run > 1 ? `run ${state.run}` : null, state.round ? `round ${state.round}` : null,
    state.exit_code === null ? null : `exit code ${state.exit_code}`,
  ];
  return h("header", null, h("div", { class: "title" }, h("h1", null, DATA.job || "job"), badge(DATA.mood, DATA.headline), h("div", { class: "no-print theme" }, themes)),
    h("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    state.command ? h("p", { class: "quiet command", title: state.command }, state.command) : null,
    DATA.cut ? h("p", { class: "alert", role: "alert" }, `The log could not be read to its end; the report covers ${many(DATA.last_seq, "event")}. ${DATA.cut}`) : null,
    h("nav", { "aria-label": "Sections", class: "no-print" }, [["timeline", "Timeline"], ["incidents", "Incidents"], ["goodput", "Goodput"], ["training", "Training"], ["ranks", "Ranks"], ["checkpoints", "Checkpoints"], ["policy", "Policy"], ["events", "Events"]]
      .map(([id, name]) => h("a", { href: `#${id}` }, name))));
}

function answers(openIncident) {
  return h("section", { class: "answers", "aria-label": "Summary" }, DATA.answers.map((each) => h("article", { class: "answer" }, h("h2", null, each.question),
    h("p", { class: "lead" }, each.text), each.more.length ? h("ul", null, each.more.map((text) => h("li", null, text))) : null,
    each.incident && INCIDENTS.some((one) => one.id === each.incident) ? h("button", { type: "button", class: "link no-print", onclick: () => openIncident(each.incident) }, `open ${each.incident}`) : null)));
}

function tiles() {
  return h("dl", { class: "tiles", "aria-label": "Figures" }, DATA.tiles.map((each) => h("div", { title: each.hint }, h("dt", null, each.label), h("dd", null, each.value), h("dd", { class: "hint" }, each.hint))));
}

const events = eventsSection();
const incidents = incidentsSection(events);
const openIncident = (id) => incidents.open(id, true);
clear(document.getElementById("app"),
  h("a", { class: "skip", href: "#incidents" }, "Skip to the incidents"), header(),
  h("main", null, answers(openIncident), tiles(), timelineSection(openIncident), incidents.node, goodputSection(), trainingSection(), ranksSection(), checkpointsSection(), policySection(), events.node),
  h("footer", { class: "quiet" }, `Made by ftcore ${DATA.version} from ${many(DATA.event_counts.total, "event")}. Curves: uPlot (MIT). This file loads nothing from elsewhere.`));
incidents.apply();
redrawAll();
const linked = () => { const id = location.hash.slice(1); if (incidents.has(id)) openIncident(id); };
const first = DATA.answers.map((each) => each.incident).find((id) => id && incidents.has(id)) || (INCIDENTS.length ? INCIDENTS[INCIDENTS.length - 1].id : null);
if (first) incidents.open(first, false);
linked();
addEventListener("hashchange", linked);
let width = innerWidth, waiting = 0;
addEventListener("resize", () => { if (innerWidth === width) return; width = innerWidth; cancelAnimationFrame(waiting); waiting = requestAnimationFrame(redrawAll); });
let before = null;
addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; redrawAll(); });
addEventListener("afterprint", () => { root.dataset.theme = before; redrawAll(); });
events.load().then(() => { root.dataset.ready = "true"; });
