"""``ftctl simulate``: simulates a job on a cluster with given failures."""

import argparse
import contextlib
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ftcore.cli.ctl_output import console, print_json, say, table, written
from ftcore.errors import UsageError
from ftcore.ids import JobName
from ftcore.logs.archive import ArchiveWriter
from ftcore.logs.outfile import STDOUT, FileKind, OutFile, same_file
from ftcore.policies.assumed import assumption_note, read_assumed
from ftcore.replay.spans import PRODUCTIVE, USES
from ftcore.sim.campaign.plot import plot
from ftcore.sim.campaign.simulate import CampaignRequest, CampaignResult, check, interval95, simulate
from ftcore.sim.campaign.tally import SimulatedIncident
from ftcore.sim.campaign.wheel import Sink
from ftcore.sim.cost import Costs
from ftcore.sim.profiles import profile
from ftcore.sim.trace import parse as parse_trace
from ftcore.wording import NO_POLICY, format_elapsed, plural

if TYPE_CHECKING:
    from ftcore.events.envelope import Event
    from ftcore.events.policy import PolicyLoaded

PATIENCE_S = 3.0
"""Seconds between lines about the progress of a long simulation."""

SVG = FileKind(name="an SVG picture", begins=b"<svg ")
FIELDS = ("nodes", "days", "rate", "nodes-min", "ckpt-interval", "assume")
"""Fields of a request that errors name by their option."""

SEEDS_MAX = 1000
TEXT_BYTES_MAX = 64 << 20


async def run(args: argparse.Namespace) -> int:
    """Simulate, print the report, write log and plot."""
    request = request_of(args)
    if not 1 <= args.seeds <= SEEDS_MAX:
        raise UsageError(f"--seeds: found {args.seeds}; expected 1 to {SEEDS_MAX}")
    try:
        check(request)
    except UsageError as error:
        raise _with_option(error) from None
    kept, picture = _out_paths(args)
    outcomes = []
    note = assumption_note(request.assumed)
    with contextlib.ExitStack() as files:  # opened before minutes of work, not after
        log = files.enter_context(ArchiveWriter(kept, JobName("campaign"), note=note)) if kept is not None else None
        drawing = files.enter_context(OutFile(picture, SVG)) if picture is not None else None
        for number in range(args.seeds):
            seeded = attrs.evolve(request, seed=args.seed + number)
            sinks = [_archive_sink(log)] if log is not None and number == 0 else []
            outcomes.append(simulate(seeded, *sinks, on_day=_ProgressLine(seeded, number, args.seeds)))
        first = outcomes[0]
        if drawing is not None:
            title = f"{_title(first)}: goodput {first.goodput:.1%}"
            drawing.write(plot(title, first.curve, request.nodes, note).encode())
    if log is not None:
        where = written(kept, "the archive" if log.replaced else "")
        say(f"wrote {plural(first.tally.events, 'event')} to {where}")
    if drawing is not None:
        say(f"wrote {written(picture, 'the picture' if drawing.replaced else '')}")
    goodputs = [outcome.goodput for outcome in outcomes]
    if args.format == "json":
        print_json({**first.to_json(), **_several(outcomes, goodputs)})
    else:
        _print(first, goodputs)
    return 0


def _with_option(error: UsageError) -> UsageError:
    """The error with the name of the option instead of the field."""
    field, colon, rest = str(error).partition(": ")
    return UsageError(f"--{field}{colon}{rest}") if field in FIELDS else error


def _out_paths(args: argparse.Namespace) -> tuple[Path | None, Path | None]:
    """The paths of log and plot; None if not wanted.

    Raises:
        UsageError: both paths are the same file, or a path cannot be used.
    """
    for name, text in (("--log", args.log), ("--plot", args.plot)):
        if text == STDOUT:
            raise UsageError(f"{name}: found -; expected a file, because the report goes to standard output")
    kept, picture = (Path(text) if text is not None else None for text in (args.log, args.plot))
    if picture is not None and picture.suffix.lower() not in ("", ".svg"):
        raise UsageError(f"--plot: found {args.plot}; expected a file name that ends in .svg")
    if kept is not None and picture is not None and same_file(kept, picture):
        raise UsageError(f"--log and --plot: found {args.log} for both; expected two files")
    return kept, picture


def _archive_sink(writer: ArchiveWriter) -> Sink:
    """A sink that writes the groups of a campaign to an archive."""

    def keep(group: "list[Event]") -> None:
        for event in group:
            writer.add(event)

    return keep


def request_of(args: argparse.Namespace) -> CampaignRequest:
    """The simulation that the arguments describe.

    Raises:
        UsageError: a file cannot be read or used, a name is not known, or a number is out of range.
    """
    chosen = profile(args.profile) if args.profile is not None else None
    trace = parse_trace(read_text(args.trace), args.trace) if args.trace is not None else None
    if chosen is None and args.rate is None and trace is None:
        chosen = profile("llama3")
    costs = Costs()
    if chosen is not None:
        costs = costs.changed(chosen.costs, chosen.name)
    if args.restart is not None:
        costs = costs.with_restart(args.restart)
    given = {"ckpt_interval": args.ckpt_interval, "ckpt_cost": args.ckpt_cost}
    costs = costs.changed({name: value for name, value in given.items() if value is not None}, "given")
    request = CampaignRequest(
        nodes=args.nodes,
        days=args.days,
        seed=args.seed,
        profile=chosen,
        rate=args.rate,
        trace=trace,
        costs=costs,
        nodes_min=args.nodes_min,
        assumed=read_assumed(args.assume) if args.assume is not None else (),
    )
    return request if args.policy is None else _with_policy(request, policy_of(args.policy))


def policy_of(path: str) -> "PolicyLoaded":
    """The chain of a policy file."""
    from ftcore.launch.policy_file import read_policy

    return read_policy(path)


def read_text(path: str) -> str:
    """The text of a file.

    Raises:
        UsageError: it cannot be read, is too long or is not text.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > TEXT_BYTES_MAX:
        raise UsageError(f"{path}: {len(data):,} bytes; expected at most {TEXT_BYTES_MAX:,}")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None


def _with_policy(request: CampaignRequest, policy: "PolicyLoaded") -> CampaignRequest:
    """The request with this policy, and with the checkpoint interval of its file, if the file has one."""
    every, figures = policy.declared.checkpoint_every, request.costs.figures
    if every > 0 and figures["ckpt_interval"].source != "given":
        costs = request.costs.changed({"ckpt_interval": every * request.costs["step"]}, policy.source)
        request = attrs.evolve(request, costs=costs)
    return attrs.evolve(request, policy=policy)


class _ProgressLine:
    """Prints the progress of a long simulation on stderr."""

    def __init__(self, request: CampaignRequest, number: int, seeds: int) -> None:
        self._days, self._number, self._seeds = request.days, number, seeds
        self._began = self._printed = time.monotonic()

    def __call__(self, day: float) -> None:
        now = time.monotonic()
        if now - self._printed < PATIENCE_S:
            return
        self._printed = now
        which = f"seed {self._number + 1} of {self._seeds}, " if self._seeds > 1 else ""
        left = (now - self._began) * (self._days - day) / day if day > 0 else 0.0
        sys.stderr.write(f"ftctl: {which}day {day:.1f} of {self._days:g}, about {format_elapsed(left)} left\n")
        sys.stderr.flush()


def _several(outcomes: list[CampaignResult], goodputs: list[float]) -> dict[str, Any]:
    if len(outcomes) < 2:
        return {}
    return {
        "goodput": statistics.mean(goodputs),
        "interval95": interval95(goodputs),
        "seeds": [{"seed": outcome.request.seed, "goodput": outcome.goodput} for outcome in outcomes],
    }


def _title(outcome: CampaignResult) -> str:
    request = outcome.request
    cause = "a trace"
    if request.trace is not None:
        cause = request.trace.source
    elif request.profile is not None:
        cause = f"profile {request.profile.name}"
    elif request.rate is not None:
        cause = f"{request.rate:g} failures per node and day"
    days = f"{request.days:g} {'day' if request.days == 1 else 'days'}"
    return f"{plural(request.nodes, 'node')}, {days}, {cause}, seed {request.seed}"


def _print(outcome: CampaignResult, goodputs: list[float]) -> None:
    out = console()
    if outcome.request.assumed:
        out.print(assumption_note(outcome.request.assumed), style="warn")
    out.print(f"{_title(outcome)}, policy {outcome.request.policy.source}", style="strong")
    if len(goodputs) > 1:
        low, high = interval95(goodputs)
        mean = statistics.mean(goodputs)
        first = outcome.request.seed
        out.print(
            f"\n{len(goodputs)} seeds, {first} to {first + len(goodputs) - 1}: mean goodput {mean:.2%}, 95% confidence "
            f"interval of the mean {low:.2%} to {high:.2%}",
            style="strong",
        )
        out.print(f"the following results are of seed {first} only")
    out.print()
    total = sum(outcome.ledger.values())
    rows = table("", "CAUSE", "SHARE", "NODE-HOURS", right=("SHARE", "NODE-HOURS"))
    for cause in USES:
        value = outcome.ledger[cause]
        name = "goodput" if cause == PRODUCTIVE else cause
        rows.add_row("", name, f"{value / total:.2%}", f"{value / 3600:,.1f}")
    out.print(rows)
    _print_incidents(outcome)
    for hint in outcome.hints:
        out.print(f"\n{hint}", style="warn")
    found = outcome.tally.violations()
    if found:
        out.print(f"\n{plural(len(found), 'violation')}", style="bad")
        for sentence in found:
            out.print(f"  {sentence}", style="bad")
    if outcome.tally.verified < outcome.tally.events:
        out.print(
            f"\nverified: the first {outcome.tally.verified:,} of {plural(outcome.tally.events, 'event')} were decided "
            "again and compared",
            style="quiet",
        )


def _ended_by(incident: SimulatedIncident) -> str:
    return incident.resolved_by or (NO_POLICY if incident.outcome else "(open)")


def _print_incidents(outcome: CampaignResult) -> None:
    out, incidents = console(), outcome.tally.incidents
    again = f", the job was started again {plural(outcome.resubmissions, 'time')}" if outcome.resubmissions else ""
    out.print(f"\n{plural(outcome.faults, 'fault')}, {plural(len(incidents), 'incident')}{again}", style="strong")
    if not incidents:
        return
    numbers = ("COUNT", "MEDIAN", "LONGEST", "STEPS LOST")
    rows = table("", "CLASS", "ENDED BY", *numbers, right=numbers)
    groups = Counter((incident.cls, _ended_by(incident)) for incident in incidents)
    for (cls, by), count in groups.most_common():
        same = [incident for incident in incidents if incident.cls == cls and _ended_by(incident) == by]
        times = [incident.seconds for incident in same if incident.seconds is not None]
        lost = [incident.steps_lost for incident in same if incident.steps_lost is not None]
        rows.add_row(
            "",
            cls,
            by,
            str(count),
            format_elapsed(statistics.median(times) if times else None),
            format_elapsed(max(times, default=None)),
            f"{sum(lost):,}" if lost else "-",
        )
    out.print(rows)
    out.print("\nResults of the policies", style="strong")
    counts = ("TAKEN", "RESOLVED", "WENT ON", "FAILED")
    rows = table("", "POLICY", *counts, right=counts)
    for name, fared in sorted(outcome.tally.policies.items()):
        rows.add_row("", name, str(fared.taken), str(fared.resolved), str(fared.continued), str(fared.escalated))
    out.print(rows)
