// The list of incidents, and the page of one of them.
const PHASE_USE = { detect: "detect", decide: "decide", wait: "idle", stop: "stop", rendezvous: "rendezvous", start: "start", first_step: "load" };

const incidentTone = (each) => (each.ended_job === "failed" || (each.state === "exhausted" && each.kind === "fault") ? "bad" :
  each.state === "resolved" ? "good" : each.state === "exhausted" ? "quiet" : "warn");
const outcome = (each) => (each.ended_job ? `the job ${each.ended_job === "stopped" ? "was stopped" : each.ended_job}` :
  each.by ? `resolved by ${each.by}` : each.state === "exhausted" ? (each.kind === "fault" ? "no policy helped" : "dropped") : each.state || "open");

function incidentsSection(events) {
  const byId = new Map(INCIDENTS.map((each, place) => [each.id, place]));
  const detail = h("div", { class: "incident", id: "incident", tabindex: "-1" });
  let sorted = [...INCIDENTS].reverse();
  const columns = [
    ["Incident", "c-id", (each) => each.id],
    ["Opened (UTC)", "c-time", (each) => moment(each.opened)],
    ["Class", "c-class", (each) => `${each.kind === "fault" ? "" : `${each.kind}: `}${each.class}`],
    ["Time", "c-cost right", (each) => took(each.total_s)],
    ["Steps", "c-lost right", (each) => (each.steps_lost === null ? "-" : count(each.steps_lost))],
    ["Outcome", "c-by", (each) => badge(incidentTone(each), outcome(each))],
    ["What", "c-what", (each) => each.what],
  ];
  const list = virtualList("Incidents", columns, (each) => open(each.id, true), 300);
  const sort = h("select", { "aria-label": "Order of incidents", onchange: (event) => {
    const by = { newest: (a, b) => byId.get(b.id) - byId.get(a.id), oldest: (a, b) => byId.get(a.id) - byId.get(b.id), costly: (a, b) => b.cost_s - a.cost_s, lost: (a, b) => (b.steps_lost || 0) - (a.steps_lost || 0) };
    sorted = [...INCIDENTS].sort(by[event.target.value]);
    apply();
  } }, h("option", { value: "newest" }, "newest first"), h("option", { value: "oldest" }, "oldest first"), h("option", { value: "costly" }, "most expensive first"), h("option", { value: "lost" }, "most lost steps first"));
  let text = "", kind = "";
  const found = h("span", { class: "quiet", "aria-live": "polite" });
  const kinds = h("select", { "aria-label": "Kind of incidents", onchange: (event) => { kind = event.target.value; apply(); } }, h("option", { value: "" }, "all kinds"),
    [...new Set(INCIDENTS.map((each) => each.kind))].map((each) => h("option", { value: each }, each)));
  const search = h("input", { type: "search", placeholder: "search incidents", "aria-label": "Search incidents", oninput: (event) => { text = event.target.value.trim().toLowerCase(); apply(); } });
  function apply() {
    const kept = sorted.filter((each) => (!kind || each.kind === kind) && (!text || `${each.id} ${each.class} ${each.what} ${each.by} ${each.nodes.join(" ")}`.toLowerCase().includes(text)));
    list.set(kept);
    found.textContent = `${count(kept.length)} of ${many(DATA.incident_count, "incident")}`;
  }

  function open(id, move) {
    const place = byId.get(id);
    if (place === undefined) return;
    const each = INCIDENTS[place], page = DATA.pages[id];
    const step = (by, name) => h("button", { type: "button", disabled: !INCIDENTS[place + by], onclick: () => open(INCIDENTS[place + by].id, true) }, name);
    clear(detail, h("div", { class: "controls" }, h("h3", null, `${id}: `, each.what), badge(incidentTone(each), outcome(each))),
      h("div", { class: "controls no-print" }, step(-1, "previous"), step(1, "next"),
        h("button", { type: "button", onclick: () => focusOn(each) }, "show in the timeline"), h("button", { type: "button", onclick: () => events.show(id) }, "show its events")),
      page ? incidentPage(each, page) : note("The report has pages of the newest and of the most expensive incidents; for this one: ", h("code", null, `ftctl explain ${id}`)));
    if (move) {
      try { history.replaceState(null, "", `#${id}`); } catch { /* a page that was opened without a place of its own */ }
      detail.scrollIntoView({ block: "nearest" });
      detail.focus({ preventScroll: true });
    }
  }

  function focusOn(each) {
    const length = Math.max((each.closed === null ? END - BEGIN : each.closed) - each.opened, (each.cost_s || 0), 1);
    setRange(BEGIN + each.opened - length * 0.75, BEGIN + each.opened + length * 1.75);
    document.getElementById("timeline").scrollIntoView();
  }

  const node = panel("incidents", `Incidents`, INCIDENTS.length ? [h("div", { class: "controls" }, sort, kinds, search, found),
    DATA.incident_count > INCIDENTS.length ? note(`The newest ${count(INCIDENTS.length)} of ${count(DATA.incident_count)}.`) : null, list.node, detail] : note("No incident in this log."));
  return { node, open, apply, has: (id) => byId.has(id) };
}

function incidentPage(each, page) {
  const lines = (texts) => (texts.length ? texts.map((text) => h("div", null, text)) : null);
  const uses = Object.entries(page.uses).filter(([, seconds]) => seconds > 0);
  const colored = (parts) => parts.map(([use, seconds, name]) => h("span", { class: "key" }, h("span", { class: "swatch", css: { background: `var(--use-${use})` } }), `${name} ${took(seconds)}`));
  const facts = [
    ["Class", `${each.class}${page.class !== each.class ? ` (${page.class})` : ""}${page.detail ? `, ${page.detail}` : ""}. ${page.meaning}`],
    ["Began at", each.root ? `${each.root}${page.root_rank === null ? "" : `, rank ${page.root_rank}`}` : null],
    ["Nodes", each.nodes.length ? `${each.nodes.slice(0, 12).join(", ")}${each.nodes.length > 12 ? ` and ${each.nodes.length - 12} more` : ""}${page.rank_count ? `; ${many(page.rank_count, "rank")}` : ""}` : null],
    ["Opened", `${page.opened.replace("T", " ").slice(0, 23)} UTC`],
    ["Closed", page.closed ? `${page.closed.replace("T", " ").slice(0, 23)} UTC, ${page.outcome || ""}` : "it is open"],
    ["What was done", page.done],
    ["What did it cost", `${page.cost}${DATA.goodput.price === null || !each.gpu_s ? "" : `; ${money(each.gpu_s)[0]}`}`],
    ["Paused", page.paused_s === null ? null : took(page.paused_s)],
    ["Diagnoses", page.revisions > 1 ? `${page.revisions}: further evidence changed it` : null],
    ["Will it come back", lines(page.again)],
    ["What to do now", lines(page.to_do)],
    ["Clocks", lines(DATA.clocks)],
    ["Events", `${page.first_seq} to ${page.last_seq}`],
  ];
  const phases = Object.entries(page.phases).filter(([name]) => name !== "total");
  const early = page.ended_early.map(([node, rank]) => `rank ${rank} on ${node}`).join(", ");
  return [
    h("dl", { class: "facts" }, facts.filter((fact) => fact[1]).map(([name, text]) => [h("dt", null, name), h("dd", null, text)])),
    early ? note(`Ended first, with exit code 0, which may be the cause: ${early}.`) : null,
    uses.length ? [h("h4", null, "Lost time by use"), useBar(uses, `Lost time: ${uses.map(([use, seconds]) => `${use} ${took(seconds)}`).join(", ")}`),
      h("p", { class: "phases" }, colored(uses.map(([use, seconds]) => [use, seconds, use])), h("b", null, `total ${took(each.cost_s)}`))] : null,
    phases.length ? [h("h4", null, "Duration of phases"), useBar(phases.map(([name, seconds]) => [PHASE_USE[name] || "idle", seconds, name.replace("_", " ")]), `Phases: ${phases.map(([name, seconds]) => `${name} ${took(seconds)}`).join(", ")}`),
      h("p", { class: "phases" }, colored(phases.map(([name, seconds]) => [PHASE_USE[name] || "idle", seconds, name.replace("_", " ")])), page.phases.total === undefined ? null : h("b", null, `total ${took(page.phases.total)}`))] : null,
    page.policies.length ? [h("h4", null, "Decisions"), table("Decisions", ["Policy", "Verdict", "Reason"], page.policies.map(([name, verdict, reason]) => [name, badge(verdict === "take" ? "good" : "quiet", verdict), reason]), "reasons"),
      page.policy_count > page.policies.length ? note(`${count(page.policy_count - page.policies.length)} more answers: ftctl explain ${each.id}`) : null] : null,
    page.timeline.length ? [h("h4", null, "Actions and results"), table("Actions and results", ["After", "Event>", "What"], page.timeline.map(([seq, after, what]) => [took(after), String(seq), what]), "reasons")] : null,
    page.presets && page.presets.length ? [h("h4", null, "What other presets would have cost, estimated"), presetsNode(page.presets)] : null,
    page.failures.length ? [h("h4", null, page.failures_title), page.failures.map((failure, place) => failureNode(failure, place)),
      page.failure_count > page.failures.length ? note(`${count(page.failure_count - page.failures.length)} more failed with it.`) : null] : null,
    page.tree.rows.length ? [h("h4", null, "What led to what"), treeNode(page.tree.rows),
      page.tree.more ? note(`${count(page.tree.more)} more events: ftctl explain ${each.id} --format json`) : null] : null,
  ];
}

/** Nested lists: an event is in the list below the one that it follows from. */
function treeNode(rows) {
  const lists = [h("ol", { class: "tree" })];
  for (const [seq, depth, after, type, what, alike] of rows) {
    while (lists.length > depth + 1) lists.pop();
    while (lists.length < depth + 1) {
      const below = h("ol");
      (lists[lists.length - 1].lastElementChild || lists[lists.length - 1]).append(below);
      lists.push(below);
    }
    lists[lists.length - 1].append(h("li", null, h("span", { class: "quiet" }, `${seq} `), h("b", null, type), ` ${what}`, h("span", { class: "quiet" }, ` (after ${took(after)}${alike ? `, and ${count(alike)} more` : ""})`)));
  }
  return lists[0];
}

function presetsNode(presets) {
  if (presets.every((each) => each.as_recorded)) return note(`The same: ${presets.map((each) => each.preset).join(", ")} take the plans that were taken.`);
  return table("Other presets", ["Preset", "Downtime>", "Steps lost>", "Policies"], presets.map((each) => [each.preset, took(each.downtime_s), count(each.steps_lost), each.as_recorded ? "as recorded" : each.policies_taken.join(", ") || "none"]));
}

function failureNode(failure, place) {
  const who = failure.rank === null ? failure.node : `rank ${failure.rank}${failure.local_rank === null ? "" : ` (local ${failure.local_rank})`} on ${failure.node}`;
  const code = failure.exitcode === null ? "" : `, exit code ${failure.exitcode}`;
  const last = failure.last_step === null ? "" : `; it completed step ${count(failure.last_step)} ${took(failure.last_ago_ms / 1000)} before`;
  return h("div", { class: "failure" }, h("p", null, h("b", null, who), `${code}, restart ${failure.restart}, ${failure.time.replace("T", " ").slice(0, 23)} UTC, event ${failure.seq}${last}`),
    failure.message ? h("pre", { class: "message" }, failure.message) : null,
    failure.traceback ? h("details", { open: place === 0 }, h("summary", null, "traceback"), h("pre", { tabindex: "0" }, failure.traceback)) : null);
}
