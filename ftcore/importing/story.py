"""Orders sightings into runs, attempts and failures, and bounds the times that no line gives.

A *run* is one submission of the job, an *attempt* the time from one start of all workers to the next. Several sightings
of one failure (a line of torchrun, its summary, an error file) become one. A worker that the launcher stopped because
another one failed has not failed. Pure.
"""

import itertools
import re
from collections.abc import Iterable

import attrs

from ftcore.ids import SECOND
from ftcore.importing.model import Act, Collected, Sighting, SourceTime, TimedLine

GAP_MIN_S = 300.0
"""Least seconds without a line that are a gap."""
GAP_FACTOR = 10
"""Least gap as a multiple of the usual time between two lines."""
HANG = "hang"
"""Kind of ``fault.observed``, and in ``Sighting.rule`` the mark of a hang that follows from several sightings."""
_SIGTERM = -15
_ABSENT_MAX = 8
_WAITED = re.compile(r"\b[Tt]imed out waiting \d{1,9}ms for \w{1,10} operation")


@attrs.define(kw_only=True)
class StoryAttempt:
    """One attempt.

    Args:
        number: from 0.
        begin: its first sign.
        items: steps, matched lines, failures, observations and losses in order of time; times are known.
        stopped: when the launcher stopped its workers; None: not known.
        finished: the sign that all of its workers ended with code 0; None: there is none.
    """

    number: int
    begin: Sighting
    items: list[Sighting] = attrs.field(factory=list)
    stopped: Sighting | None = None
    finished: Sighting | None = None
    pids: dict[tuple[str, int], int] = attrs.field(factory=dict)

    @property
    def troubles(self) -> list[Sighting]:
        """Failures, observations and losses, in order."""
        return [one for one in self.items if one.act in (Act.FAILED, Act.OBSERVED, Act.LOST)]


@attrs.define(kw_only=True)
class StoryRun:
    """One submission of the job.

    Args:
        number: from 0.
        submitted: its record; None: there is none.
        attempts: at least one.
        ended: the sign of its end; None: the files do not show one.
        hosts: number of ranks by host, in order of their ranks.
    """

    number: int
    hosts: dict[str, int]
    submitted: Sighting | None
    attempts: list[StoryAttempt]
    ended: Sighting | None


@attrs.define(kw_only=True)
class Story:
    """What happened, in order.

    Args:
        runs: at least one.
        hosts: all hosts: number of ranks, in order of their ranks.
        gaps: times without a line: begin and end.
    """

    runs: list[StoryRun]
    hosts: dict[str, int]
    gaps: list[tuple[TimedLine, TimedLine]]


def tell(collected: Collected) -> Story | None:
    """Order everything that was found; None: nothing shows what a job did."""
    hosts = _hosts(collected)
    by_run = {
        run: {host: slots for host, slots in hosts.items() if host in names}
        for run, names in collected.run_hosts.items()
    }
    sightings = [_placed(one, by_run.get(one.run) or hosts) for one in collected.sightings]
    known = [one.when.ns for one in sightings if one.when.ns is not None]
    if not any(one.act is not Act.OUTPUT for one in sightings):
        return None
    if not known:
        collected.note("no line has a time: that of the newest file's last change was taken for all")
        known = [collected.changed]
    runs = []
    floor = min(known)
    for number in sorted({one.run for one in sightings}):
        mine = [one for one in sightings if one.run == number]
        run = _run(number, mine, floor, by_run.get(number) or hosts)
        runs.append(run)
        floor = max([floor, *(_ns(one) for attempt in run.attempts for one in attempt.items)])
        if run.ended is not None:
            floor = max(floor, _ns(run.ended))
    return Story(runs=runs, hosts=hosts, gaps=find_gaps(collected.times))


def _ns(one: Sighting) -> int:
    assert one.when.ns is not None
    return one.when.ns


def _hosts(collected: Collected) -> dict[str, int]:
    """The hosts with their numbers of ranks, ordered by the ranks that the files show, else by name."""
    slots = dict(collected.hosts)
    base: dict[str, int] = {}
    highest = -1
    for one in collected.sightings:
        if one.host:
            slots.setdefault(one.host, 1)
            if one.local_rank is not None:
                slots[one.host] = max(slots[one.host], one.local_rank + 1)
                if one.rank is not None:
                    base[one.host] = min(base.get(one.host, one.rank), one.rank - one.local_rank)
        if one.rank is not None:
            highest = max(highest, one.rank)
        elif one.local_rank is not None and not one.host:
            highest = max(highest, one.local_rank)
    if not slots:
        slots = {"node0": 1}
    if len(slots) == 1:
        only = next(iter(slots))
        slots[only] = max(slots[only], min(highest, 4095) + 1)
    elif highest >= sum(slots.values()) and highest < 1 << 16:
        each = -(-(highest + 1) // len(slots))  # ranks are named, but not on which host: as many on each
        slots = {host: max(count, each) for host, count in slots.items()}
    names = sorted(slots, key=lambda host: (base.get(host, 1 << 40), _natural(host)))
    return {name: slots[name] for name in names}


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    parts: list[tuple[int, str]] = []
    digits, rest = "", ""
    for sign in name[:200]:
        if sign.isascii() and sign.isdigit():
            digits += sign
        else:
            parts.append((int(digits or 0), rest + sign))
            digits, rest = "", ""
    return (*parts, (int(digits or 0), ""))


def _placed(one: Sighting, hosts: dict[str, int]) -> Sighting:
    """A sighting with host, global and local rank, as far as one follows from the others."""
    host, rank, local = one.host, one.rank, one.local_rank
    base = 0
    for name, slots in hosts.items():
        if not host and rank is not None and base <= rank < base + slots:
            host = name
        if name == host:
            rank = base + local if rank is None and local is not None else rank
            local = rank - base if local is None and rank is not None and 0 <= rank - base < slots else local
            break
        base += slots
    if not host and len(hosts) == 1:
        host = next(iter(hosts))
        return _placed(attrs.evolve(one, host=host), hosts)
    return attrs.evolve(one, host=host, rank=rank, local_rank=local)


def _run(number: int, sightings: list[Sighting], floor: int, slots: dict[str, int]) -> StoryRun:
    submitted = next((one for one in sightings if one.act is Act.SUBMITTED), None)
    ended = _end(sightings)
    rest = [one for one in sightings if one.act not in (Act.SUBMITTED, Act.ENDED)]
    starts = _starts(rest)
    rest = [attrs.evolve(one, attempt=_attempt_at(one, starts)) if one.attempt is None else one for one in rest]
    numbers = sorted({one.attempt or 0 for one in rest}) or [0]
    attempts = []
    if submitted is not None and submitted.when.ns is not None:
        floor = max(floor, submitted.when.ns)
    for each in numbers:
        attempt = _attempt(each, [one for one in rest if (one.attempt or 0) == each], floor, slots)
        attempts.append(attempt)
        floor = max([_ns(attempt.begin), *(_ns(one) for one in attempt.items)])
        if attempt.stopped is not None:
            floor = max(floor, _ns(attempt.stopped))
    if ended is not None:
        ended = _bounded(ended, floor)
    return StoryRun(number=number, hosts=slots, submitted=submitted, attempts=attempts, ended=ended)


def _end(sightings: Iterable[Sighting]) -> Sighting | None:
    """The end of the run: the scheduler's record, else the launcher's."""
    ends = [one for one in sightings if one.act is Act.ENDED]
    return max(ends, key=lambda one: (one.when.basis == "field", one.when.ns or 0), default=None)


def _starts(sightings: Iterable[Sighting]) -> list[tuple[int, int]]:
    """The earliest time of each attempt, in order."""
    first: dict[int, int] = {}
    for one in sightings:
        if one.attempt is not None and one.when.ns is not None:
            first[one.attempt] = min(first.get(one.attempt, one.when.ns), one.when.ns)
    return sorted((ns, attempt) for attempt, ns in first.items())


def _attempt_at(one: Sighting, starts: list[tuple[int, int]]) -> int:
    if one.when.ns is None:
        return starts[-1][1] if starts else 0
    before = [attempt for ns, attempt in starts if ns <= (one.when.ns or 0)]
    return before[-1] if before else (starts[0][1] if starts else 0)


def _ends_of_steps(others: list[Sighting]) -> list[Sighting]:
    """The first and the last step of every rank without time stamps."""
    ends: dict[tuple[str, int | None], list[Sighting]] = {}
    for one in others:
        if one.act is Act.STEPPED and one.when.ns is None:
            kept = ends.setdefault((one.host, one.rank), [one])
            kept[1:] = [one] if one is not kept[0] else []
    return [one for kept in ends.values() for one in kept]


def _absent(items: list[Sighting], slots: dict[str, int]) -> list[Sighting]:
    """The hang that the failures show: most ranks waited in vain for the same ranks, which reported nothing.

    A waiting rank says that it waited, never for whom. Who is missing follows from who reports.
    """
    troubles = [one for one in items if one.act in (Act.FAILED, Act.OBSERVED) and one.source == "log"]
    waited = [one for one in troubles if _WAITED.search(f"{one.text}\n{one.tail}")]
    told = {one.rank for one in troubles if one.rank is not None}
    missing = [rank for rank in range(sum(slots.values())) if rank not in told]
    if not waited or len(waited) < len(troubles) or not missing or len(missing) >= len(told):
        return []
    first = min(waited, key=_ns)
    base, found = 0, []
    for host, count in slots.items():
        for rank in missing[:_ABSENT_MAX]:
            if base <= rank < base + count:
                text = f"rank {rank} reported nothing while {len(waited)} other ranks timed out waiting for their peers"
                place = attrs.evolve(first, rank=rank, local_rank=rank - base, host=host)
                found.append(
                    attrs.evolve(place, act=Act.OBSERVED, rule=HANG, text=text, tail="", callstack="", code=None)
                )
        base += count
    return found


def _attempt(number: int, sightings: list[Sighting], floor: int, slots: dict[str, int]) -> StoryAttempt:
    pids = {
        (one.host, one.local_rank): one.pid for one in sightings if one.pid and one.host and one.local_rank is not None
    }
    stops = [one for one in sightings if one.act is Act.STOPPED]
    failures = _failures([one for one in sightings if one.act is Act.FAILED], stops)
    failed = {(one.host, one.local_rank) for one in failures}
    tails = _tails(sightings)
    others = [one for one in sightings if one.act in (Act.STEPPED, Act.MATCHED, Act.LOST)]
    others += [
        one
        for one in sightings
        if one.act is Act.OBSERVED and not (one.source == "log" and _is_told(one, failed, failures))
    ]
    failures = [attrs.evolve(one, tail=one.tail or tails.get((one.host, one.local_rank), "")) for one in failures]
    steps = [_ns(one) for one in others if one.act is Act.STEPPED and one.when.basis == "line"]
    failures = [_after_steps(one, steps) for one in failures]
    dated = [one.when.ns for one in sightings if one.when.ns is not None]
    ceiling = max(dated) if dated else floor
    # what has no time at all came before the failure
    late = min((one.when.ns for one in (*failures, *stops) if one.when.ns is not None), default=ceiling)
    others = [one for one in others if one.when.ns is not None or one.act is not Act.STEPPED] + _ends_of_steps(others)
    items = [_bounded(one, late) for one in others] + [_bounded(one, ceiling) for one in failures]
    items += _absent(items, slots)
    items.sort(key=lambda one: (_ns(one), one.act is not Act.STEPPED, one.act is not Act.MATCHED))
    signs = [one for one in sightings if one.act in _BEGINS and one.when.ns is not None] + items
    begin = min(signs, key=_ns, default=sightings[0] if sightings else None)
    if begin is None:
        begin = Sighting(act=Act.OUTPUT, place="", when=SourceTime(ns=floor))
    begin = _bounded(begin, floor)
    if _ns(begin) < floor:
        begin = attrs.evolve(begin, when=attrs.evolve(begin.when, ns=floor, basis="bound"))
    stopped = min((one for one in stops if one.when.ns is not None), key=_ns, default=None)
    finished = next((one for one in sightings if one.act is Act.FINISHED), None)
    return StoryAttempt(
        number=number,
        begin=begin,
        items=items,
        stopped=stopped,
        finished=_bounded(finished, ceiling) if finished is not None else None,
        pids=pids,
    )


_BEGINS = (Act.STARTED, Act.OUTPUT, Act.STOPPED)


def _after_steps(one: Sighting, steps: list[int]) -> Sighting:
    """A failure whose time has whole seconds, after the steps in its second: no rank trains on without another."""
    if one.when.ns is None or not one.when.error_s or one.when.basis != "field":
        return one
    end = one.when.ns + round(one.when.error_s * SECOND)
    last = max((ns for ns in steps if one.when.ns < ns < end), default=0)
    if not last:
        return one
    return attrs.evolve(one, when=attrs.evolve(one.when, ns=last, error_s=(end - last) / SECOND))


def _is_told(one: Sighting, failed: set[tuple[str, int | None]], failures: list[Sighting]) -> bool:
    """Whether output that looks like a failure is that of a worker with a known failure, or of the whole job's log."""
    return (one.host, one.local_rank) in failed or (one.rank is None and bool(failures))


def _tails(sightings: Iterable[Sighting]) -> dict[tuple[str, int | None], str]:
    """The last output of every rank: of its output, then of its error stream, whose last line says why it failed."""
    found: dict[tuple[str, int | None], str] = {}
    for one in sorted(sightings, key=lambda one: "stderr" in one.place.rpartition("/")[2]):
        if one.tail:
            key = (one.host, one.local_rank)
            found[key] = (f"{found[key]}\n{one.tail}" if key in found else one.tail)[-4096:]
    return found


def _failures(sightings: list[Sighting], stops: list[Sighting]) -> list[Sighting]:
    """One sighting for each worker that failed."""
    by_worker: dict[tuple[str, int | None, int | None], list[Sighting]] = {}
    for one in sightings:
        by_worker.setdefault((one.host, one.local_rank, one.rank if one.local_rank is None else None), []).append(one)
    joined = [_joined(several) for several in by_worker.values()]
    signalled = {one.pid for one in stops if one.pid}
    caused = any(one.code != _SIGTERM for one in joined)
    return [one for one in joined if not (one.code == _SIGTERM and not one.text and (one.pid in signalled or caused))]


def _joined(several: list[Sighting]) -> Sighting:
    """Sightings of one failure as one: every field that is known, and the time that bounds it best."""
    coded = next((one for one in several if one.code is not None), several[0])
    told = next((one for one in several if one.callstack), next((one for one in several if one.text), coded))
    precise = [one for one in several if one.when.ns is not None]
    when = coded.when
    if precise:
        fields = [one for one in precise if one.when.basis == "field"]
        lines = [one for one in precise if one.when.basis == "line"]
        if fields and lines:
            begin, seen = min(_ns(one) for one in fields), min(_ns(one) for one in lines)
            # the field has whole seconds; the line comes when the launcher has noticed
            ns = max(begin, min(begin + SECOND - 1, seen))
            when = attrs.evolve(fields[0].when, ns=ns, error_s=max(0.001, (ns - begin) / SECOND))
        else:
            when = min(precise, key=_ns).when
    exception = next((one.text for one in several if one.callstack or one.place.endswith("error.json")), "")
    place = told.place if exception else coded.place
    pid = next((one.pid for one in several if one.pid), 0)
    rank = next((one.rank for one in several if one.rank is not None), None)
    return attrs.evolve(coded, when=when, text=exception, callstack=told.callstack, place=place, pid=pid, rank=rank)


def _bounded(one: Sighting, ns: int) -> Sighting:
    """A sighting with a time: its own, else a bound."""
    return one if one.when.ns is not None else attrs.evolve(one, when=SourceTime(ns=ns, basis="bound"))


def find_gaps(times: list[TimedLine]) -> list[tuple[TimedLine, TimedLine]]:
    """Times without a line of any file."""
    ordered = sorted((one for one in times if one.when.ns is not None), key=lambda one: one.when.ns or 0)
    apart = [((b.when.ns or 0) - (a.when.ns or 0)) / SECOND for a, b in itertools.pairwise(ordered)]
    if not apart:
        return []
    usual = sorted(apart)[len(apart) // 2]
    least = max(GAP_MIN_S, GAP_FACTOR * usual)
    return [(ordered[i], ordered[i + 1]) for i, length in enumerate(apart) if length > least]
