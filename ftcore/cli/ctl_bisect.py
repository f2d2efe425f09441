"""``ftctl bisect``: the first event at which a property fails."""

import argparse

import attrs

from ftcore.cli.ctl_lines import summary
from ftcore.cli.ctl_output import clock, date, print_json, say
from ftcore.cli.ctl_reading import opened_reading
from ftcore.errors import UnknownEvent
from ftcore.ids import Seq
from ftcore.ports import AppendOnlyLog
from ftcore.replay.bisect import Bisection, CheckBisector, ExpressionBisector, Turning
from ftcore.replay.checks import CHECKS
from ftcore.replay.expressions import StateExpression
from ftcore.wording import plural, printable

FAILS = 1
"""Exit code if the property fails."""

UNFINISHED = UnknownEvent.exit_code
"""Exit code if it does not fail, but not all events could be judged."""


async def bisect(args: argparse.Namespace) -> int:
    """Judge every event; print the first failure and the changes after it."""
    reader: ExpressionBisector | CheckBisector
    if args.expr is not None:
        reader = ExpressionBisector(StateExpression(args.expr))
    else:
        reader = CheckBisector(CHECKS[args.check]())
    async with opened_reading(args) as reading:
        log = reading.log
        await reading.feed(reader)
        reader.close(cut=reading.error is not None)
        found = reader.result
        if not found.unknown and reading.error is not None:
            found.unknown = str(reading.error)
        first = found.first_failure
        if args.format == "json":
            print_json(_json(args, str(log.job), found))
        elif first is None:
            print(f"it holds at all of {plural(found.events, 'event')}" if found.events else "no event to judge")
        elif args.expr is None:
            print(await _line("fails first", first, log))
            print(f"  {plural(found.count - 1, 'further failure')} in the log" if found.count > 1 else "  once")
        else:
            await _print_turnings(found, log)
    if found.unknown and reading.error is None:
        say(f"later events are not judged: {found.unknown}")
    return FAILS if first is not None else UNFINISHED if found.unknown else 0


async def _print_turnings(found: Bisection, log: AppendOnlyLog) -> None:
    """The first failure, the return, and the first failure after it, if the property did not hold at the beginning."""
    first, again = found.first_failure, found.holds_again
    assert first is not None
    never = found.turnings[0] is first
    print(await _line("does not hold from the beginning" if never else "fails first", first, log))
    if again is None:
        print("  it does not hold later")
        return
    print(await _line("holds first" if never else "holds again", again, log))
    if never and len(found.turnings) > 2:
        print(await _line("fails then", found.turnings[2], log))
    print(f"  it changes {plural(found.count - 1, 'time')} in the log")


async def _line(what: str, turning: Turning, log: AppendOnlyLog) -> str:
    why = f"\n  {printable(turning.why)}" if turning.why else ""
    async for event in log.read(Seq(turning.seq - 1), Seq(turning.seq)):
        told = f"{date(event.time)} {clock(event.time)} {event.type} {summary(event)[:300]}"
        return f"{what} at event {event.seq}: {printable(told)}{why}"
    return f"{what} at event {turning.seq}, after the last one{why}"


def _json(args: argparse.Namespace, job: str, found: Bisection) -> dict[str, object]:
    first, again = found.first_failure, found.holds_again
    return {
        "job": job,
        "property": args.expr if args.expr is not None else args.check,
        "event_count": found.events,
        "first_failure": None if first is None else attrs.asdict(first),
        "holds_again": None if again is None else attrs.asdict(again),
        "changes": [attrs.asdict(each) for each in found.turnings],
        "change_count": found.count,
        "not_judged": found.unknown or None,
    }
