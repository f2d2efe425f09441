"""``ftctl incidents`` and ``ftctl explain``."""

import argparse
import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from ftcore.cli.ctl_events import settled_bound
from ftcore.cli.ctl_output import console, print_json, say, table
from ftcore.cli.ctl_store import opened
from ftcore.errors import NotFound
from ftcore.events.worker import StepTimes
from ftcore.faults.taxonomy import title_of
from ftcore.launch.hints import hinted
from ftcore.policies.abilities import LACKS
from ftcore.replay.explain import Asked, Explainer, Failure, FaultOrigin, Incident
from ftcore.replay.reading import read_async
from ftcore.replay.select import Bound
from ftcore.wording import format_elapsed, listed, plural, printable, utc

if TYPE_CHECKING:
    from rich.console import Console

_STATE_STYLES = {"resolved": "good", "exhausted": "bad"}

NEEDED = re.compile(f"{LACKS}`([^`]*)`")
"""The ability in the reason of a policy that passes because it is missing."""

TOTAL_NOTE = "TOTAL: from the fault, for a hang from the last step, until the first new step"

TRACEBACK_LINES = 20
"""Last lines of a traceback that ``explain`` prints."""

STEP_TIMES = 8
"""Number of step times that ``explain`` prints of the failed worker."""


async def _read(args: argparse.Namespace, since: Bound | None = None) -> list[Incident]:
    explainer = Explainer()
    async with opened(args) as log:
        since = await settled_bound(since, log)
        await read_async(log.read(), explainer)
    return [incident for incident in explainer.incidents() if since is None or _was_open(incident, since)]


def _was_open(incident: Incident, since: Bound) -> bool:
    """Whether the incident was open at a position of the log, or was opened after it."""
    if incident.closed is None:
        return True
    if since.seq is not None:
        return incident.last_seq >= since.seq
    assert since.time is not None
    return incident.closed >= since.time


async def incidents(args: argparse.Namespace) -> int:
    """List the incidents."""
    from rich.text import Text

    found = await _read(args, args.since)
    if args.format == "json":
        print_json([incident.to_json() for incident in found])
        return 0
    if not found:
        say("no incidents" if args.since is None else "no incidents since then")
        return 0
    rows = table(
        "ID",
        "OPENED (UTC)",
        "KIND",
        "OUTCOME",
        "CLASS",
        "TOTAL",
        "LOST",
        "WHAT",
        right=("TOTAL", "LOST"),
        flexible=("WHAT",),
        spare=("KIND", "CLASS", "LOST"),
    )
    for incident in found:
        rows.add_row(
            incident.id,
            _date_time(utc(incident.opened))[:19],
            incident.kind,
            Text(_resolved_by(incident), style=_style(incident)),
            title_of(incident.cls, incident.detail),
            format_elapsed(incident.phases.total),
            "-" if incident.steps_lost is None else str(incident.steps_lost),
            printable(incident.summary),
        )
    console().print(rows)
    faults = any(incident.kind == "fault" for incident in found)
    note = f"; {TOTAL_NOTE}" if faults else ""
    console().print(f"{counts([incident.kind for incident in found])}{note}", style="quiet")
    return 0


def counts(kinds: Sequence[str]) -> str:
    """The number of incidents of each kind, as ``1 fault, 3 requests``; faults first."""
    many = {"opportunity": "opportunities"}
    order = [kind for kind in ("fault", "warning", "request", "opportunity") if kind in kinds]
    return ", ".join(plural(kinds.count(kind), kind, many.get(kind, "")) for kind in order)


def _state_name(incident: Incident) -> str:
    """The incident's state; ``dropped`` if no policy took it, and ``exhausted`` for a fault, which ended the job."""
    return "dropped" if incident.state == "exhausted" and incident.kind != "fault" else incident.state


def _kind(incident: Incident) -> str:
    return f"{'an' if incident.kind[0] in 'aeiou' else 'a'} {incident.kind}"


def _lost(incident: Incident) -> str:
    if incident.steps_lost is None and incident.kind != "fault" and incident.phases.rendezvous is None:
        return "-"  # no worker was stopped
    return "not known" if incident.steps_lost is None else plural(incident.steps_lost, "step")


async def explain(args: argparse.Namespace) -> int:
    """Explain one incident."""
    found = await _read(args)
    if not found:
        raise NotFound("the log has no incident")
    chosen = found[-1]
    if args.incident is not None:
        named = [incident for incident in found if incident.id == args.incident]
        if not named:
            raise NotFound(f"no incident {args.incident!r}; there are {found[0].id} to {found[-1].id}")
        chosen = named[-1]
    if args.format == "json":
        print_json(chosen.to_json())
    else:
        _print(chosen, console(), args)
    return 0


def _print(incident: Incident, out: "Console", args: argparse.Namespace) -> None:
    from rich.text import Text

    head = table("", "", flexible=("",))
    head.show_header = False
    head.columns[0].no_wrap = True
    head.add_row("incident", Text.assemble(f"{incident.id}, ", _state(incident)))
    head.add_row("what", Text(printable(incident.summary), style="strong"))
    detail = f" ({incident.detail})" if incident.detail else ""
    title = title_of(incident.cls, incident.detail)
    called = f": {title}" if title != incident.cls else ""
    head.add_row("class", f"{incident.cls}{detail}{called}, {_kind(incident)}")
    if incident.root.node is not None:
        rank = f", rank {incident.root.rank}" if incident.root.rank is not None else ""
        head.add_row("root", f"{incident.root.node}{rank}")
    if incident.ended_early:
        head.add_row("cause", ended_early(incident.ended_early))
    head.add_row("opened", f"{_date_time(utc(incident.opened))} UTC")
    if incident.closed is not None:
        head.add_row("closed", f"{_date_time(utc(incident.closed))} UTC, {incident.outcome}")
    if incident.outcome == "paused":
        head.add_row("paused", _paused(incident))
    head.add_row("lost", _lost(incident))
    head.add_row("events", f"{incident.first_seq} to {incident.last_seq}")
    out.print(head)
    out.print("\nDecisions", style="strong")
    verdicts = table("", "POLICY", "VERDICT", "REASON", flexible=("REASON",))
    for name, verdict, reason in _folded(incident.policies):
        verdicts.add_row(
            "", name, Text(verdict, style="good" if verdict == "take" else ""), printable(hinted(reason, args))
        )
    out.print(verdicts)
    if incident.timeline:
        out.print("\nActions and results", style="strong")
        steps = table("", "AFTER", "EVENT", "WHAT", right=("AFTER", "EVENT"), flexible=("WHAT",))
        for step in incident.timeline:
            steps.add_row("", format_elapsed(step.after_s), str(step.seq), printable(hinted(step.what, args)))
        out.print(steps)
    out.print("\nDuration of phases", style="strong")
    every = [field.name for field in attrs.fields(type(incident.phases))]
    names = [name for name in every if name != "wait" or incident.phases.wait is not None]
    if incident.in_place:
        names = [name for name in names if getattr(incident.phases, name) is not None]
    titles = [_phase_title(name, incident) for name in names]
    phases = table("", *titles, right=tuple(titles))
    phases.add_row("", *(format_elapsed(getattr(incident.phases, name)) for name in names))
    out.print(phases)
    if incident.failures:
        out.print("\nFailures, the first one first", style="strong")
        for failure in incident.failures:
            _print_failure(failure, out)


def _phase_title(name: str, incident: Incident) -> str:
    if name == "total" and incident.phases.first_step is not None:
        return "total to new step"
    return "in place" if name == "start" and incident.in_place else name


def _paused(incident: Incident) -> str:
    assert incident.closed is not None
    since = f"from {_date_time(utc(incident.closed))} UTC"
    return f"{since}, not resumed yet" if incident.paused_s is None else f"{format_elapsed(incident.paused_s)}, {since}"


def ended_early(origins: Sequence[FaultOrigin]) -> str:
    """The ranks that ended first, in a sentence."""
    ranks = ranks_text([origin.rank for origin in origins if origin.rank is not None])
    nodes = listed(list(dict.fromkeys(origin.node for origin in origins if origin.node is not None)))
    ended = "had ended with exit code 0; the others failed because they lost the connection to it"
    if len(origins) > 1:
        ended = "had ended with exit code 0; the others failed because they lost the connections to them"
    return f"{ranks} on {nodes} {ended}"


def _folded(policies: Sequence[Asked]) -> list[tuple[str, str, str]]:
    """A row for each answer; policies that lack an ability share one row, at the place of the first."""
    unable = list(dict.fromkeys(asked.name for asked in policies if _is_unable(asked)))
    rows: list[tuple[str, str, str]] = []
    folded = False
    for asked in policies:
        if len(unable) < 2 or not _is_unable(asked):
            rows.append((asked.name, asked.verdict, asked.reason))
        elif not folded:
            folded = True
            reasons = {asked.name: asked.reason for asked in policies if _is_unable(asked)}
            needs = dict.fromkeys(ability for reason in reasons.values() for ability in NEEDED.findall(reason))
            rows.append((f"{len(unable)} policies", "pass", f"{', '.join(unable)}: the job lacks {', '.join(needs)}"))
    return rows


def _is_unable(asked: Asked) -> bool:
    return asked.verdict == "pass" and asked.reason.startswith(f"{LACKS}`")


def _resolved_by(incident: Incident) -> str:
    by = incident.resolved_by or _state_name(incident)
    return f"{by} (job failed)" if incident.job_ended == "failed" and incident.resolved_by else by


def _state(incident: Incident) -> tuple[str, str]:
    by = f" by {incident.resolved_by}" if incident.resolved_by else ""
    if incident.outcome == "ended" and incident.job_ended:
        verb = {"stopped": "was stopped"}.get(incident.job_ended, incident.job_ended)
        return f"ended{by}: the job {verb}", _style(incident)
    return f"{_state_name(incident)}{by}", _style(incident)


def _style(incident: Incident) -> str:
    return "bad" if incident.job_ended == "failed" else _STATE_STYLES.get(_state_name(incident), "warn")


def _date_time(iso: str) -> str:
    return iso[:23].replace("T", " ")


def _print_failure(failure: Failure, out: "Console") -> None:
    source = failure.node
    if failure.rank is not None:
        local = f" (local {failure.local_rank})" if failure.local_rank is not None else ""
        source = f"rank {failure.rank}{local} on {failure.node}"
    code = "" if failure.exitcode is None else f", exit code {failure.exitcode}"
    out.print(
        f"  {source}{code}, restart {failure.restart}, at {_date_time(utc(failure.time))} UTC, event {failure.seq}"
    )
    if failure.message:
        out.print(f"    {printable(failure.message)}", style="bad")
    for line in last_steps(failure.last):
        out.print(f"    {line}", style="quiet")
    if failure.py_callstack:
        for line in failure.py_callstack.rstrip().splitlines()[-TRACEBACK_LINES:]:
            out.print(f"    {printable(line)}", style="quiet")


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
