"""``ftctl explain``: one page about one incident.

The first lines answer four questions: why did it stop, what was done, what did it cost, will it happen again. Below
are the decisions with their reasons, the phases, the failures and the events with their causes.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from ftcore.cli.ctl_incidents import date_time, state_name, style
from ftcore.cli.ctl_lines import summary
from ftcore.cli.ctl_output import console, print_json, table
from ftcore.cli.ctl_overview import incident_tree, read_overview
from ftcore.cli.ctl_reading import opened_reading
from ftcore.errors import NotFound
from ftcore.events.worker import StepTimes
from ftcore.faults.failure import Failure, short
from ftcore.faults.taxonomy import title_of
from ftcore.launch.hints import hinted
from ftcore.replay.accounts import IncidentCost
from ftcore.replay.causality import CausalTree, CauseNode, depth_first
from ftcore.replay.clocks import NodeClock
from ftcore.replay.explain import FaultOrigin, Incident
from ftcore.replay.hang import HANGS, HangingRanks
from ftcore.replay.incident_text import (
    again_lines,
    clock_lines,
    cost_text,
    done_text,
    failures_title,
    folded_answers,
    is_cut_off,
    to_do_lines,
)
from ftcore.replay.outlook import Outlook, outlook
from ftcore.replay.overview import JobOverview
from ftcore.states.model import JobState
from ftcore.wording import format_elapsed, listed, plural, printable, utc

if TYPE_CHECKING:
    from rich.console import Console

    from ftcore.sim.whatif.presets import PresetCost

MESSAGE_CHARS = 4_000
"""First characters of a failure's message, or of a line of its traceback, that ``explain`` prints."""

TRACEBACK_LINES = 20
"""Last lines of a traceback that ``explain`` prints."""

FRAMES = 4
"""Innermost frames that ``explain`` prints of ranks that hang or wait."""

STEP_TIMES = 8
"""Number of step times that ``explain`` prints of the failed worker."""

TREE_LINES = 60
"""Events of the tree that ``explain`` prints."""

PRESETS_EVENTS_MAX = 20_000
"""Events of a log up to which the presets are compared without being asked for: each of them folds the log."""


@attrs.frozen(kw_only=True)
class Explanation:
    """What is known of one incident.

    Args:
        incident: the incident.
        cost: what it cost; None: nothing.
        outlook: what to expect; None: it is no fault.
        tree: its events with their causes.
        presets: what other built-in presets would have cost; None: they were not compared.
        clocks: the clocks that disagree with the log's.
        state: the folded state at the end of the log.
    """

    incident: Incident
    cost: IncidentCost | None
    outlook: Outlook | None
    tree: list[CauseNode]
    presets: "list[PresetCost] | None"
    clocks: list[NodeClock]
    state: JobState

    def to_json(self) -> dict[str, Any]:
        """The JSON of ``ftctl explain``."""
        opened_at = self.incident.opened
        return {
            **self.incident.to_json(),
            "lost_time": None if self.cost is None else self.cost.to_json(),
            "outlook": None if self.outlook is None else attrs.asdict(self.outlook),
            "tree": [
                {
                    "seq": node.event.seq,
                    "type": node.event.type,
                    "parent_seq": node.parent,
                    "after_s": (node.event.time - opened_at) / 1e9,
                    "what": _what(node),
                    "alike": node.alike,
                }
                for node in self.tree
            ],
            "presets": None if self.presets is None else [attrs.asdict(each) for each in self.presets],
            "clocks": [attrs.asdict(each) for each in self.clocks],
        }


async def explain(args: argparse.Namespace) -> int:
    """Explain one incident."""
    found, code = await _explanation(args)
    if args.format == "json":
        print_json(found.to_json())
    else:
        _print(found, console(), args)
    return code


async def _explanation(args: argparse.Namespace) -> tuple[Explanation, int]:
    """What is known, and the exit code."""
    async with opened_reading(args) as reading:
        presets, tree = None, None
        if args.presets or await reading.log.last_seq() <= PRESETS_EVENTS_MAX:
            from ftcore.sim.whatif.presets import PresetPrices  # with the engine

            presets = PresetPrices()
        else:
            found = await read_overview(reading, args)
            chosen = _chosen(found, args.incident)
            tree = await incident_tree(reading, args, found, chosen.id)
        if tree is None:
            reading.begin_again()
            found, tree = JobOverview(), CausalTree(args.incident)
            await reading.feed(found, tree, *([] if presets is None else [presets]))
            chosen = _chosen(found, args.incident)
    goodput = found.ledger.report()
    explanation = Explanation(
        incident=chosen,
        cost=goodput.cost_of(chosen.id),
        outlook=outlook(chosen, found.ledger.explainer.incidents(), found.state, goodput.end),
        tree=tree.nodes(),
        presets=None if presets is None else presets.of(chosen.id),
        clocks=found.clocks.clocks(),
        state=found.state,
    )
    return explanation, reading.exit_code


def _chosen(overview: JobOverview, name: str | None) -> Incident:
    """The incident of that name, by default the newest."""
    incidents = overview.ledger.explainer.incidents()
    if not incidents:
        raise NotFound("the log has no incident")
    if name is None:
        return incidents[-1]
    named = [incident for incident in incidents if incident.id == name]
    if not named:
        raise NotFound(f"no incident {name!r}; there are {incidents[0].id} to {incidents[-1].id}")
    return named[-1]


def _what(node: CauseNode) -> str:
    return summary(node.event).removeprefix(f"{node.event.incident}: ")


def _print(found: Explanation, out: "Console", args: argparse.Namespace) -> None:
    incident = found.incident
    _print_answers(found, out)
    if incident.hang:
        out.print("\nRanks", style="strong")
        _print_hang(incident.hang, out)
    out.print("\nDecisions", style="strong")
    _print_decisions(incident, out, args)
    if incident.timeline:
        out.print("\nActions and results", style="strong")
        steps = table("", "AFTER", "EVENT", "WHAT", right=("AFTER", "EVENT"), flexible=("WHAT",))
        for step in incident.timeline:
            steps.add_row("", format_elapsed(step.after_s), str(step.seq), printable(hinted(step.what, args)))
        out.print(steps)
    out.print("\nDuration of phases", style="strong")
    _print_phases(incident, out)
    if found.presets:
        out.print("\nWhat other presets would have cost, estimated", style="strong")
        _print_presets(found.presets, out)
    elif found.presets is None:
        out.print("\n--presets estimates what other presets would have cost", style="quiet")
    if incident.failures:
        out.print(f"\n{failures_title(incident)}", style="strong")
        for failure in incident.failures:
            _print_failure(failure, out)
    if found.tree:
        out.print("\nWhat led to what", style="strong")
        _print_tree(found, out)


def _print_answers(found: Explanation, out: "Console") -> None:
    """The first screen."""
    from rich.text import Text

    incident = found.incident
    end = " where the imported files end" if is_cut_off(incident, found.state) else ""
    out.print(Text.assemble(f"{incident.id}: ", _state(incident), end))
    head = table("", "", flexible=("",))
    head.show_header = False
    head.columns[0].no_wrap = True
    fault = incident.kind in ("fault", "warning")
    head.add_row("why did it stop?" if fault else "what was it?", Text(printable(incident.summary), style="strong"))
    for line in _cause_lines(found):
        head.add_row("", printable(line))
    head.add_row("what was done?", printable(done_text(incident, found.state)))
    head.add_row("what did it cost?", cost_text(incident, found.cost, found.state))
    if found.outlook is not None:
        for number, line in enumerate(again_lines(found.outlook, incident)):
            head.add_row("will it come back?" if number == 0 else "", printable(line))
        for number, line in enumerate(to_do_lines(found.outlook)):
            head.add_row("what to do now?" if number == 0 else "", printable(line))
    out.print(head)


def _cause_lines(found: Explanation) -> list[str]:
    incident = found.incident
    lines = []
    if incident.root.node is not None:
        rank = f"rank {incident.root.rank} on " if incident.root.rank is not None else ""
        first = incident.failures[0] if incident.failures else None
        at = f", {date_time(utc(first.time))} UTC" if first is not None else ""
        lines.append(f"first: {rank}{incident.root.node}{at}")
    detail = f" ({incident.detail})" if incident.detail else ""
    meaning = f": {found.outlook.meaning}" if found.outlook is not None else ""
    title = title_of(incident.cls, incident.detail)
    called = f", {title}" if title != incident.cls else ""
    lines.append(f"class {incident.cls}{detail}{called}, {_kind(incident)}{meaning}")
    if incident.ended_early:
        lines.append(ended_early(incident.ended_early))
    times = f"opened {date_time(utc(incident.opened))}"
    if incident.closed is not None:
        times += f", closed {date_time(utc(incident.closed))}"
    return [*lines, f"{times} UTC, events {incident.first_seq} to {incident.last_seq}", *clock_lines(found.clocks)]


def _print_hang(groups: Sequence[HangingRanks], out: "Console") -> None:
    """Which ranks hang, which wait for them, and the innermost frames of each."""
    from rich.text import Text

    rows = table("", "", "WHAT", flexible=("WHAT",))
    for group in groups:
        node = f" (on {group.node})" if group.node else ""
        rows.add_row("", Text(group.role, style="bad" if group.role == HANGS else ""), printable(group.what + node))
        for frame in group.frames[:FRAMES]:
            rows.add_row("", "", f"  {printable(frame)}")
        if group.stacks:
            rows.add_row("", "", f"  all stacks: {printable(group.stacks)}")
    out.print(rows)


def _print_decisions(incident: Incident, out: "Console", args: argparse.Namespace) -> None:
    from rich.text import Text

    verdicts = table("", "POLICY", "VERDICT", "REASON", flexible=("REASON",))
    for name, verdict, reason in folded_answers(incident.policies):
        verdicts.add_row(
            "", name, Text(verdict, style="good" if verdict == "take" else ""), printable(hinted(reason, args))
        )
    out.print(verdicts)


def _print_phases(incident: Incident, out: "Console") -> None:
    every = [field.name for field in attrs.fields(type(incident.phases))]
    names = [name for name in every if name != "wait" or incident.phases.wait is not None]
    if incident.in_place:
        names = [name for name in names if getattr(incident.phases, name) is not None]
    titles = [_phase_title(name, incident) for name in names]
    phases = table("", *titles, right=tuple(titles))
    phases.add_row("", *(format_elapsed(getattr(incident.phases, name)) for name in names))
    out.print(phases)


def _print_presets(presets: "Sequence[PresetCost]", out: "Console") -> None:
    if all(each.as_recorded for each in presets):
        out.print(f"  the same: {', '.join(each.preset for each in presets)} take the plans that were taken")
        return
    from ftcore.sim.cost import Costs, unknown_costs  # with the simulator

    numbers = ("DOWNTIME", "STEPS LOST")
    rows = table("", "PRESET", *numbers, "POLICIES", right=numbers, flexible=("POLICIES",))
    for each in presets:
        lost = f"{each.steps_lost:,.0f}"
        policies = "as recorded" if each.as_recorded else ", ".join(each.policies_taken) or "none"
        rows.add_row("", each.preset, format_elapsed(each.downtime_s), lost, policies)
    out.print(rows)
    out.print(f"  {unknown_costs(Costs())}", style="quiet")


def _print_tree(found: Explanation, out: "Console") -> None:
    from rich.text import Text

    order = depth_first(found.tree)
    rows = table("", "EVENT", "AFTER", "WHAT", right=("EVENT", "AFTER"), flexible=("WHAT",))
    for node, depth in order[:TREE_LINES]:
        after = format_elapsed(max(0.0, (node.event.time - found.incident.opened) / 1e9))
        alike = f" (and {node.alike} more)" if node.alike else ""
        indent = "  " * min(depth, 12)
        line = Text(f"{indent}{node.event.type}: {printable(_what(node))[:160]}{alike}")
        rows.add_row("", str(node.event.seq), after, line)
    out.print(rows)
    if len(order) > TREE_LINES:
        out.print(f"  and {plural(len(order) - TREE_LINES, 'event')} more; --format json has all", style="quiet")


def _phase_title(name: str, incident: Incident) -> str:
    if name == "total" and incident.phases.first_step is not None:
        return "total to new step"
    return "in place" if name == "start" and incident.in_place else name


def _kind(incident: Incident) -> str:
    return f"{'an' if incident.kind[0] in 'aeiou' else 'a'} {incident.kind}"


def ended_early(origins: Sequence[FaultOrigin]) -> str:
    """The ranks that ended first, in a sentence."""
    ranks = ranks_text([origin.rank for origin in origins if origin.rank is not None])
    nodes = listed(list(dict.fromkeys(origin.node for origin in origins if origin.node is not None)))
    ended = "had ended with exit code 0; the others failed because they lost the connection to it"
    if len(origins) > 1:
        ended = "had ended with exit code 0; the others failed because they lost the connections to them"
    return f"{ranks} on {nodes} {ended}"


def _state(incident: Incident) -> tuple[str, str]:
    by = f" by {incident.resolved_by}" if incident.resolved_by else ""
    if incident.outcome == "ended" and incident.job_ended:
        verb = {"stopped": "was stopped"}.get(incident.job_ended, incident.job_ended)
        return f"ended{by}: the job {verb}", style(incident)
    return f"{state_name(incident)}{by}", style(incident)


def _print_failure(failure: Failure, out: "Console") -> None:
    source = failure.node
    if failure.rank is not None:
        local = f" (local {failure.local_rank})" if failure.local_rank is not None else ""
        source = f"rank {failure.rank}{local} on {failure.node}"
    code = "" if failure.exitcode is None else f", exit code {failure.exitcode}"
    out.print(
        f"  {source}{code}, restart {failure.restart}, at {date_time(utc(failure.time))} UTC, event {failure.seq}"
    )
    if failure.message:
        out.print(f"    {short(failure.message, MESSAGE_CHARS)}", style="bad")
        if len(failure.message) > MESSAGE_CHARS:
            out.print(f"    ({len(failure.message):,} characters; --format json has all)", style="quiet")
    for line in last_steps(failure.last):
        out.print(f"    {line}", style="quiet")
    if failure.py_callstack:
        for line in failure.py_callstack.rstrip().splitlines()[-TRACEBACK_LINES:]:
            out.print(f"    {short(line, MESSAGE_CHARS)}", style="quiet")


def last_steps(last: Sequence[StepTimes]) -> list[str]:
    """The last steps before a failure, in at most two lines: those of the first worker, then the others."""
    if not last:
        return []
    first, others = last[0], last[1:]
    times = " ".join(f"{each:.0f}" for each in _step_times(first)[-STEP_TIMES:])
    times = f"; the last steps took {times} ms" if times else ""
    lines = [f"rank {first.rank} completed step {first.step} {format_elapsed(first.ago_ms / 1000)} before{times}"]
    if others:
        steps = [other.step for other in others]
        span = f"step {steps[0]}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"
        usual = [each for other in others for each in _step_times(other)]
        took = f"; median {statistics.median(usual):.0f} ms, maximum {max(usual):.0f} ms per step" if usual else ""
        lines.append(f"{ranks_text([other.rank for other in others])} completed {span}{took}")
    return lines


def _step_times(times: StepTimes) -> list[float]:
    """Milliseconds per step, for each entry."""
    return [took / steps for steps, took in zip(times.steps, times.took_ms, strict=False)]


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks, at best as a range: ``ranks 0 to 3``."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
