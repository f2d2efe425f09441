"""``ftctl incidents`` and ``ftctl explain``."""

import argparse
import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from ftcore.cli.ctl_output import console, print_json, say, table
from ftcore.cli.ctl_store import opened
from ftcore.errors import NotFound
from ftcore.events.worker import StepTimes
from ftcore.launch.hints import hinted
from ftcore.policies.abilities import LACKS
from ftcore.replay.explain import Asked, Explainer, Failure, Incident
from ftcore.replay.reading import read_async
from ftcore.wording import clean, format_elapsed, plural, utc

if TYPE_CHECKING:
    from rich.console import Console

_STATE_STYLES = {"resolved": "good", "exhausted": "bad"}

NEEDED = re.compile(f"{LACKS}`([^`]*)`")
"""An ability in the reason of a policy that is passed over for want of it."""

TRACEBACK_LINES = 20
"""Lines of a traceback that ``explain`` prints; its end is what matters."""

STEP_TIMES = 8
"""Times of steps that it prints of the worker that failed."""


async def _read(args: argparse.Namespace) -> list[Incident]:
    explainer = Explainer()
    async with opened(args) as log:
        await read_async(log.read(), explainer)
    return explainer.incidents()


async def incidents(args: argparse.Namespace) -> int:
    """List the incidents."""
    from rich.text import Text

    found = await _read(args)
    if args.format == "json":
        print_json([incident.to_json() for incident in found])
        return 0
    if not found:
        say("no incidents")
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
            _moment(utc(incident.opened))[:19],
            incident.kind,
            Text(incident.resolved_by or _word(incident), style=_STATE_STYLES.get(_word(incident), "warn")),
            incident.cls,
            format_elapsed(incident.phases.total),
            "-" if incident.steps_lost is None else str(incident.steps_lost),
            clean(incident.summary),
        )
    console().print(rows)
    return 0


def _word(incident: Incident) -> str:
    """Its state; what nobody took was dropped, unless it was a fault, which ended the job."""
    return "dropped" if incident.state == "exhausted" and incident.kind != "fault" else incident.state


def _kind(incident: Incident) -> str:
    return f"{'an' if incident.kind[0] in 'aeiou' else 'a'} {incident.kind}"


def _lost(incident: Incident) -> str:
    return "not known" if incident.steps_lost is None else plural(incident.steps_lost, "step")


async def explain(args: argparse.Namespace) -> int:
    """Explain one incident."""
    found = await _read(args)
    if not found:
        raise NotFound("the log holds no incident")
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
    head.add_row("what", Text(clean(incident.summary), style="strong"))
    detail = f" ({incident.detail})" if incident.detail else ""
    head.add_row("class", f"{incident.cls}{detail}, {_kind(incident)}")
    if incident.root.node is not None:
        rank = f", rank {incident.root.rank}" if incident.root.rank is not None else ""
        head.add_row("root", f"{incident.root.node}{rank}")
    head.add_row("opened", f"{_moment(utc(incident.opened))} UTC")
    if incident.closed is not None:
        head.add_row("closed", f"{_moment(utc(incident.closed))} UTC, {incident.outcome}")
    head.add_row("lost", _lost(incident))
    head.add_row("events", f"{incident.first_seq} to {incident.last_seq}")
    out.print(head)
    out.print("\nWhat was decided", style="strong")
    verdicts = table("", "POLICY", "VERDICT", "REASON", flexible=("REASON",))
    for name, verdict, reason in _folded(incident.policies):
        verdicts.add_row(
            "", name, Text(verdict, style="good" if verdict == "take" else ""), clean(hinted(reason, args))
        )
    out.print(verdicts)
    if incident.timeline:
        out.print("\nWhat was done", style="strong")
        steps = table("", "AFTER", "EVENT", "WHAT", right=("AFTER", "EVENT"), flexible=("WHAT",))
        for step in incident.timeline:
            steps.add_row("", format_elapsed(step.after_s), str(step.seq), clean(hinted(step.what, args)))
        out.print(steps)
    out.print("\nHow long it took", style="strong")
    every = [field.name for field in attrs.fields(type(incident.phases))]
    names = [name for name in every if name != "wait" or incident.phases.wait is not None]
    phases = table("", *names, right=tuple(names))
    phases.add_row("", *(format_elapsed(getattr(incident.phases, name)) for name in names))
    out.print(phases)
    if incident.failures:
        out.print("\nWhat failed, the first failure first", style="strong")
        for failure in incident.failures:
            _print_failure(failure, out)


def _folded(policies: Sequence[Asked]) -> list[tuple[str, str, str]]:
    """A row for each answer; policies that the job is not able to carry out share one, where the first was asked."""
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


def _state(incident: Incident) -> tuple[str, str]:
    by = f" by {incident.resolved_by}" if incident.resolved_by else ""
    return f"{_word(incident)}{by}", _STATE_STYLES.get(_word(incident), "warn")


def _moment(iso: str) -> str:
    return iso[:23].replace("T", " ")


def _print_failure(failure: Failure, out: "Console") -> None:
    who = failure.node
    if failure.rank is not None:
        local = f" (local {failure.local_rank})" if failure.local_rank is not None else ""
        who = f"rank {failure.rank}{local} on {failure.node}"
    code = "" if failure.exitcode is None else f", exit code {failure.exitcode}"
    out.print(f"  {who}{code}, restart {failure.restart}, at {_moment(utc(failure.time))} UTC, event {failure.seq}")
    if failure.message:
        out.print(f"    {clean(failure.message)}", style="bad")
    for line in last_steps(failure.last):
        out.print(f"    {line}", style="quiet")
    if failure.py_callstack:
        for line in failure.py_callstack.rstrip().splitlines()[-TRACEBACK_LINES:]:
            out.print(f"    {clean(line)}", style="quiet")


def last_steps(last: Sequence[StepTimes]) -> list[str]:
    """What led to a failure, in at most two lines: the first worker's last steps, and how the others compare."""
    if not last:
        return []
    first, others = last[0], last[1:]
    times = " ".join(f"{each:.0f}" for each in _each(first)[-STEP_TIMES:])
    times = f"; the last steps took {times} ms" if times else ""
    lines = [f"rank {first.rank} completed step {first.step} {format_elapsed(first.ago_ms / 1000)} before{times}"]
    if others:
        steps = [other.step for other in others]
        span = f"step {steps[0]}" if min(steps) == max(steps) else f"steps {min(steps)} to {max(steps)}"
        usual = [each for other in others for each in _each(other)]
        took = f"; usually {statistics.median(usual):.0f} ms, {max(usual):.0f} ms at most" if usual else ""
        lines.append(f"{_ranks(others)} completed {span}{took}")
    return lines


def _each(one: StepTimes) -> list[float]:
    """Milliseconds of a step, by entry."""
    return [took / steps for steps, took in zip(one.steps, one.took_ms, strict=False)]


def _ranks(workers: Sequence[StepTimes]) -> str:
    ranks = sorted(worker.rank for worker in workers)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"
