// Sections below the timeline, except incidents and events.
function trainingSection() {
  const { loss, pace, flags, norms, rollbacks, skips } = DATA.curves;
  const kids = [];
  if (loss.length) kids.push(lossChart());
  else kids.push(note("The log has no loss: the script does not report one (ftcore.worker, step.report)."));
  if (norms.length) kids.push(normChart());
  else kids.push(note("Gradient norm: the log has it only for steps that a detector flagged, and none was flagged for its norm."));
  if (pace.length) kids.push(paceChart());
  if (rollbacks.length) kids.push(h("h4", null, "Rollbacks"), table("Rollbacks", ["Time (UTC)", "To step>", "From step>", "Why"],
    rollbacks.slice(-20).map(([at, step, before, why]) => [moment(at), count(step), before === null ? "-" : count(before), why])));
  if (skips.length) kids.push(h("h4", null, "Skipped data"), table("Skipped data", ["Time (UTC)", "After step>", "Skipped>", "Why"],
    skips.slice(-20).map(([at, step, amount, unit, why]) => [moment(at), count(step), `${count(amount)} ${unit}`, why])));
  if (flags.length) kids.push(h("details", null, h("summary", null, `${many(flags.length, "flagged step")}`),
    table("Flagged steps", ["Time (UTC)", "Step>", "Kind", "Value>", "Message"], flags.slice(-100).map(([at, step, kind, value, message]) => [moment(at), step === null ? "-" : count(step), kind, number(value), message]))));
  return panel("training", "Training", kids);
}

function lossChart() {
  const { loss, flags, rollbacks, skips, sample_count: samples } = DATA.curves;
  const gone = abandoned(loss), box = h("div", { class: "plot" }), line = h("p", { class: "readout", "aria-hidden": "true" });
  let by = "time";
  // null ends a line, so the lines of two rounds are not joined; a value that is only missing in one series does not.
  const part = (wanted) => loss.map((point, place) => (gone[place] === wanted ? point[3] : null));
  const make = () => {
    const options = chartOptions(box, 250, by, (colors, axis, base) => ({
      axes: [{ ...axis }, { ...axis, size: gutter()}],
      series: [{}, { stroke: colors.curve, width: 2, points: { show: loss.length < 60 } },
        { stroke: colors.quiet, width: 1.5, dash: [5, 4], ...(by === "step" ? { paths: () => null, points: { show: true, size: 4 } } : {}) },
        { stroke: colors.bad, paths: () => null, points: { show: true, size: 9, width: 2 } }],
      hooks: { drawClear: [(u) => { if (by === "step") bands(u, rollbacks.filter((each) => each[2] !== null).map((each) => [each[1], each[2]]), colors.bad); }],
        draw: [(u) => {
          if (by === "time") verticalMarks(u, rollbacks.map((each) => ({ at: BEGIN + each[0], step: each[1] })), colors.bad, (mark) => `to step ${mark.step}`);
          verticalMarks(u, skips.map((each) => ({ at: by === "time" ? BEGIN + each[0] : each[1], text: `skip ${count(each[2])} ${each[3]}` })), colors.warn, (mark) => mark.text, 1);
        }],
        setCursor: [readout(line, (place) => told(place))] },
    }));
    const x = (point) => (by === "time" ? BEGIN + point[0] : point[1]);
    const sorted = (points) => (by === "time" ? points : [...points].sort((a, b) => a[1] - b[1]));
    const columns = (points) => [points.map(x), points.map((point) => point[3])];
    const flagged = flags.filter((each) => each[2].startsWith("loss") && each[3] !== null && each[1] !== null)
      .map((each) => [each[0], each[1], 0, each[3]]);
    const again = loss.filter((point, place) => gone[place]);
    const lines = by === "time" ? [[loss.map(x), part(false), part(true)]] :
      [columns(loss.filter((point, place) => !gone[place])), columns(sorted(again))];
    const data = uPlot.join([...lines, columns(sorted(flagged))]);
    make.data = data;
    return [options, data];
  };
  const byX = new Map();
  const told = (place) => {
    const at = make.data[0][place];
    const value = [1, 2, 3].map((each) => make.data[each][place]).find((each) => each !== null && each !== undefined);
    if (!byX.size) loss.forEach((point) => { byX.set(`t${BEGIN + point[0]}`, point); byX.set(`s${point[1]}`, point); });
    const point = byX.get(`${by === "time" ? "t" : "s"}${at}`);
    return point ? `step ${count(point[1])}, loss ${number(value)}, ${moment(point[0])} UTC, round ${point[2]}` : `loss ${number(value)}`;
  };
  const draw = chart(box, `Loss, ${many(samples, "sample")}, from ${number(loss[0][3])} to ${number(loss[loss.length - 1][3])}`, () => by, make);
  return h("div", { class: "figure" }, h("div", { class: "controls" }, h("h3", null, "Loss"),
    choice("Horizontal axis", [["time", "by time"], ["step", "by step"]], by, (next) => { by = next; draw(); }),
    h("span", { class: "key" }, h("i", { class: "k-line" }), "kept"), gone.some(Boolean) ? h("span", { class: "key" }, h("i", { class: "k-dash" }), "computed again later") : null,
    flags.length ? h("span", { class: "key" }, h("i", { class: "k-flag" }), "flagged") : null), box, line);
}

function normChart() {
  const { norms } = DATA.curves, box = h("div", { class: "plot" });
  chart(box, `Gradient norm at ${many(norms.length, "flagged step")}`, () => "time", () => [chartOptions(box, 160, "time", (colors, axis) => ({
    axes: [{ ...axis }, { ...axis, size: gutter() }],
    series: [{}, { stroke: colors.bad, paths: () => null, points: { show: true, size: 9, width: 2 } }],
  })), [norms.map((each) => BEGIN + each[0]), norms.map((each) => each[2])]]);
  return h("div", { class: "figure" }, h("h3", null, "Gradient norm, where a detector flagged it"), box);
}

function paceChart() {
  const { pace } = DATA.curves, box = h("div", { class: "plot" }), line = h("p", { class: "readout", "aria-hidden": "true" });
  chart(box, "Seconds per step between two samples of progress", () => "time", () => [chartOptions(box, 160, "time", (colors, axis, base) => ({
    axes: [{ ...axis }, { ...axis, size: gutter(), values: (u, values) => values.map((value) => took(value)) }],
    scales: { ...base.scales, y: { range: (u, min, max) => [0, (max || 1) * 1.1] } },
    series: [{}, { stroke: colors.curve2, width: 1.5, points: { show: pace.length < 60 } }],
    hooks: { setCursor: [readout(line, (place) => `${took(pace[place][3])} per step around step ${count(pace[place][1])}, ${moment(pace[place][0])} UTC`)] },
  })), [pace.map((each) => BEGIN + each[0]), pace.map((each) => each[3])]]);
  return h("div", { class: "figure" }, h("h3", null, "Time per step"), box, line);
}

function ranksSection() {
  const { rows, groupings, first_steps: first, stragglers } = DATA.ranks;
  const kids = [];
  if (rows.length) kids.push(...rankTimes(rows, groupings));
  else kids.push(note("Step times of single ranks: none in this log. An agent reports the last steps of its workers with a fault, if the script reports steps."));
  if (first.length > 1) {
    const slow = [...first].sort((a, b) => b[2] - a[2]).slice(0, 10);
    const usual = [...first].map((each) => each[2]).sort((a, b) => a - b)[first.length >> 1];
    const apart = slow.filter((each) => each[2] > 1.05 * usual);
    kids.push(h("h3", null, "From the new world to a node's first step"),
      note(`The median node takes ${took(usual)}; ${apart.length ? "the slowest nodes:" : "no node takes much longer."}`));
    if (apart.length) kids.push(table("Nodes that are slow to their first step", ["Node", "Rounds>", "Mean>", "Of the median>", "Longest>"],
        apart.map(([node, rounds, mean, longest]) => [node, count(rounds), took(mean), usual ? `${(mean / usual).toFixed(2)}x` : "-", took(longest)])));
  }
  if (stragglers.length) kids.push(h("h3", null, "Slow ranks that the master found"), table("Slow ranks", ["Time (UTC)", "Node", "Rank>", "Phase", "The step with it>", "Without>"],
    stragglers.slice(-20).map(([at, node, rank, phase, value, usual]) => [moment(at), node, rank < 0 ? "-" : String(rank), phase || "-", took(value), took(usual)])));
  return panel("ranks", "Step time by rank", kids);
}

function rankTimes(rows, groupings) {
  const box = h("div", { class: "plot" }), list = h("div");
  let by = -1;
  const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
  const grouped = () => {
    if (by < 0) return rows.map(([rank, samples, middle, most]) => [`rank ${rank}`, samples, middle, most]);
    const groups = new Map();
    rows.forEach((row, place) => { const name = groupings[by].of[place]; groups.set(name, [...groups.get(name) || [], row]); });
    return [...groups].map(([name, all]) => [name, all.reduce((sum, each) => sum + each[1], 0), median(all.map((each) => each[2])), Math.max(...all.map((each) => each[3]))]);
  };
  let shown = grouped();
  const draw = chart(box, "Milliseconds per step by rank or group: median and maximum", () => "rank", () => [chartOptions(box, 200, "rank", (colors, axis, base) => ({
    axes: [{ ...axis, values: (u, at) => at.map((value) => (by < 0 ? rows[value] ? rows[value][0] : "" : shown[value] ? shown[value][0].slice(-10) : "")), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
      { ...axis, size: gutter(), values: (u, values) => values.map((value) => `${value} ms`) }],
    scales: { x: { time: false, range: () => [-0.5, shown.length - 0.5] }, y: { range: (u, min, max) => [0, (max || 1) * 1.08] } },
    series: [{}, { stroke: colors.curve, paths: () => null, points: { show: true, size: shown.length > 200 ? 4 : 8, fill: colors.curve } },
      { stroke: colors.bad, paths: () => null, points: { show: true, size: shown.length > 200 ? 4 : 8 } }],
  })), [shown.map((each, place) => place), shown.map((each) => each[2]), shown.map((each) => each[3])]]);
  const fill = () => {
    shown = grouped();
    const slow = [...shown].sort((a, b) => b[2] - a[2]).slice(0, 12);
    clear(list, table("The slowest ranks or groups", [by < 0 ? "Rank" : groupings[by].name, "Samples>", "Median>", "Maximum>"],
      slow.map(([name, samples, middle, most]) => [name, count(samples), `${middle.toFixed(1)} ms`, `${most.toFixed(1)} ms`])));
  };
  fill();
  const select = h("select", { "aria-label": "Group ranks by", onchange: (event) => { by = Number(event.target.value); fill(); draw(); } },
    h("option", { value: "-1" }, "each rank"), groupings.map((each, place) => h("option", { value: place }, `by ${each.name}`)));
  return [h("div", { class: "controls" }, select, h("span", { class: "key" }, h("i", { class: "k-dot" }), "median"), h("span", { class: "key" }, h("i", { class: "k-flag" }), "maximum")),
    box, note("Of the last steps before faults, as agents reported them."), list];
}

function goodputSection() {
  const good = DATA.goodput, wall = good.wall_s || 1;
  if (good.unknown) return panel("goodput", "Goodput: what the time was used for", note(`Not known: ${good.unknown}.`));
  const uses = good.uses.filter((row) => row[1] > 0);
  const main = (parts) => Object.entries(parts).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([use, seconds]) => `${use} ${took(seconds)}`).join(", ");
  return panel("goodput", "Goodput: what the time was used for",
    useBar(uses.map(([use, seconds]) => [use, seconds]), `Use of the time: ${uses.map(([use, seconds]) => `${use} ${percent(seconds / wall)}`).join(", ")}`),
    h("div", { class: "columns" },
      h("div", null, table("Use of the time", ["Use", "Share>", "Time>", "GPU-hours>", ...PRICED.map((each) => `${each}>`)], uses.map(([use, seconds, gpuS]) => [
        h("span", { title: USE_TEXT[use] }, h("span", { class: "swatch", css: { background: `var(--use-${use})` } }), use, h("span", { class: "use-text" }, USE_TEXT[use])),
        percent(seconds / wall), took(seconds), gpuHours(gpuS), ...money(gpuS)]))),
      h("div", null, good.causes.length ? table("Lost time by cause", ["Cause", "Incidents>", "Time>", "GPU-hours>", ...PRICED.map((each) => `${each}>`), "Mostly"],
        good.causes.map((each) => [each.cause, each.incident_count ? count(each.incident_count) : "-", took(each.total_s), gpuHours(each.gpu_s), ...money(each.gpu_s), main(each.uses)])) : note("No time was lost."))),
    good.repeats_known ? null : note("The script reports no absolute steps (ftcore.worker): steps that were computed again count as productive."),
    good.nodes.length > 1 ? h("details", null, h("summary", null, `Nodes (${good.nodes.length < good.node_count ? `${count(good.nodes.length)} of ${count(good.node_count)}, ` : ""}those where faults began first)`),
      table("Use of the time by node", ["Node", "Time>", "Productive>", "Idle>", "Faults>", "GPU-hours>", ...PRICED.map((each) => `${each}>`)], good.nodes.map((each) => [each.node, took(each.total_s), each.total_s ? percent((each.uses.productive || 0) / each.total_s) : "-", took(each.uses.idle || 0), count(each.fault_count), gpuHours(each.gpu_s), ...money(each.gpu_s)]))) : null);
}

function checkpointsSection() {
  const saves = DATA.saves, kids = [];
  if (saves.places.length) kids.push(h("h3", null, "What a new round can load"), table("Where checkpoints live", ["Step", "Round>", "In", "State", "Where"],
    saves.places.slice(0, 40).map((each) => [count(each.step), String(each.round), each.where, each.complete ? badge("good", "complete") : badge("warn", "not complete"), each.detail])));
  else kids.push(note(saves.committed.length ? "ftcore holds no state of this job: its script saves and loads by itself." : "No checkpoint is known.", saves.spec ? ` Directory: ${saves.spec}.` : ""));
  if (saves.interval) kids.push(note(`${saves.interval}.`));
  if (saves.committed.length) {
    const newest = [...saves.committed].reverse();
    const rows = (list) => table("Saved checkpoints", ["Step", "Saved (UTC)", "Round>", "Training waited>", "Now", "Where"], list.map((each) => [count(each.step), moment(each.at), String(each.round), took(each.seconds),
      each.abandoned ? badge("warn", "left behind by a rollback") : each.usable ? badge("good", "on storage") : each.own ? badge("quiet", "removed since, or older") : badge("quiet", "of the script"), each.where || "-"]));
    kids.push(h("h3", null, `Saved: ${many(saves.committed_count, "checkpoint")}`), rows(newest.slice(0, 8)));
    if (newest.length > 8) kids.push(h("details", null, h("summary", null, `${count(newest.length - 8)} older`), rows(newest.slice(8, 200))));
  }
  if (saves.failed.length) kids.push(h("h3", null, `Failed: ${count(saves.failed_count)}`), table("Checkpoints that failed", ["Time (UTC)", "Node", "Step>", "Why"], saves.failed.slice(-10).map(([at, node, step, why]) => [moment(at), node, count(step), why])));
  const loads = saves.loads.filter((each) => each[3]);
  if (loads.length) kids.push(h("details", null, h("summary", null, `Loaded in ${many(loads.length, "round")}`), table("Loaded states", ["Round", "Time (UTC)", "Step>", "From", "Took>", "Nodes>"], loads.slice(-100).reverse().map(([at, round, step, source, seconds, nodes]) => [String(round), moment(at), count(step), source, took(seconds), count(nodes)]))));
  return panel("checkpoints", "Checkpoints", kids);
}

function policySection() {
  const policy = DATA.policy;
  if (!policy) return panel("policy", "Policy", note("The log has no policy yet."));
  const did = (each) => (each.taken + each.passed === 0 ? h("span", { class: "quiet" }, "not asked, or skipped because the job lacks an ability that it needs") :
    h("ul", { class: "plain" }, each.reasons.map((reason) => h("li", null, `${count(reason.count)}x `, badge(reason.verdict === "take" ? "good" : "quiet", reason.verdict), ` ${reason.reason}`))));
  const row = (each, place) => [`${place === null ? "" : `${place + 1}. `}${each.policy}`, count(each.taken), count(each.resolved), count(each.failed), count(each.passed), did(each)];
  const options = (each) => Object.entries(each.options).map(([name, value]) => `${name}: ${value}`).join(", ");
  const titles = ["Policy", "Taken>", "Resolved>", "Failed>", "Passed>", "Why"];
  return panel("policy", "Policy: what each entry did",
    note(`From ${policy.source}${policy.file_count > 1 ? `, the newest of ${policy.file_count} files` : ""}. For each incident the entries are asked from the top; the first that takes it acts, one that passes leaves it to the next.`),
    table("Policies", titles, policy.entries.map(row), "policies"),
    policy.earlier.length ? [h("h3", null, "Entries of earlier files"), table("Entries of earlier policy files", titles, policy.earlier.map((each) => row(each, null)), "policies")] : null,
    h("details", null, h("summary", null, "Options of the entries"), table("Options", ["Policy", "Asked about", "Options"], policy.entries.map((each) => [each.policy, each.faults.join(", ") || "all classes", options(each) || "-"]))),
    policy.text ? h("details", null, h("summary", null, "The policy file"), h("pre", { class: "file", tabindex: "0" }, policy.text)) : note("The default chain of ftcore; no file."));
}
