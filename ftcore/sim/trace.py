"""Traces of faults: what goes wrong when, and where; the input that both fidelities of the simulator share.

A trace is a sequence of ``TraceFault`` in order of time. It is drawn from a profile, made up by hand for a test, or
read from a file of tab-separated lines, of one of these kinds; the first line says which:

| first line | each further line |
|---|---|
| ``seconds  node  kind`` | so long after training began, the node of that place, a kind of ``evidence.KINDS`` |
| ``seconds  node  kind  stays`` | the same, and ``yes`` if the machine stays bad until it is replaced, else ``no`` |
| ``ms  event  node`` | a fleet of spot instances: so many ms after the first line, ``add`` or ``remove``, a name |

House rules: a file is wrong in one way at a time, and the message names file and line. Names of a fleet become places
in the order in which they first appear; who is gone keeps its place.
"""

import difflib
import itertools
from collections.abc import Iterator, Sequence

import attrs

from ftcore.errors import UsageError
from ftcore.sim.evidence import JOIN, KINDS, PREEMPTED

FAULTS_HEAD = ("seconds", "node", "kind", "stays")
FLEET_HEAD = ("ms", "event", "node")


@attrs.frozen(kw_only=True)
class TraceFault:
    """One thing that happens to a job.

    Args:
        time_s: seconds of virtual time since the trace began.
        node: the place of the node that it happens to, from 0.
        kind: name of a kind in ``evidence.KINDS``, which holds what the engine gets to see of it.
        stays: the machine stays bad: workers that start on it fail again until another machine takes its place.
    """

    time_s: float
    node: int
    kind: str
    stays: bool = False


@attrs.frozen(kw_only=True)
class Trace:
    """What a trace file holds.

    Args:
        source: the file's name.
        faults: in order of time.
        nodes: places that are named.
        fleet: nodes come and go by the trace alone; none of them is there before its first ``join``.
        lines: the line of each fault, for messages.
    """

    source: str
    faults: tuple[TraceFault, ...]
    nodes: int
    fleet: bool = False
    lines: tuple[int, ...] = ()

    def beyond(self, nodes: int) -> str:
        """Where a node is named that a job of so many does not have; empty if none is."""
        for fault, number in itertools.zip_longest(self.faults, self.lines):
            if fault.node >= nodes:
                where = f"{self.source}: line {number}" if number else self.source
                return f"{where}: names node {fault.node}; the job has the nodes 0 to {nodes - 1}"
        return ""


def parse(text: str, source: str) -> Trace:
    """Read a trace file.

    Args:
        text: its content.
        source: its name, for messages.

    Raises:
        UsageError: one message with file, line, what was found and what is expected.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line and not line.startswith("#")]
    head = tuple(lines[0][1].split("\t")) if lines else ()
    if head == FLEET_HEAD:
        faults, names = _fleet(lines[1:], source)
        nodes = len(names)
    elif head in (FAULTS_HEAD, FAULTS_HEAD[:3]):
        faults = list(_faults(lines[1:], source, len(head)))
        nodes = max((fault.node for fault in faults), default=-1) + 1
    else:
        found = repr("\t".join(head)[:80]) if lines else "nothing"
        raise UsageError(
            f"{source}: line 1: found {found}; expected the columns, separated by tabs: "
            f"{' '.join(FAULTS_HEAD[:3])}, or of a spot fleet: {' '.join(FLEET_HEAD)}"
        )
    if not faults:
        raise UsageError(f"{source}: holds no line behind its first")
    numbers = tuple(number for number, _ in lines[1:])
    for (before, after), number in zip(itertools.pairwise(faults), numbers[1:], strict=True):
        if after.time_s < before.time_s:
            raise UsageError(
                f"{source}: line {number}: not in order of time: {after.time_s:g} s stands behind {before.time_s:g} s"
            )
    return Trace(source=source, faults=tuple(faults), nodes=nodes, fleet=head == FLEET_HEAD, lines=numbers)


def render(faults: Sequence[TraceFault]) -> str:
    """The text of a trace file that ``parse`` reads as these faults."""
    lines = ["\t".join(FAULTS_HEAD), *map(_line, faults)]
    return "\n".join(lines) + "\n"


def _line(fault: TraceFault) -> str:
    return f"{fault.time_s:.9f}\t{fault.node}\t{fault.kind}\t{'yes' if fault.stays else 'no'}"


def _faults(lines: Sequence[tuple[int, str]], source: str, columns: int) -> Iterator[TraceFault]:
    for number, line in lines:
        seconds, node, kind, *rest = _fields(line, number, source, columns)
        place = _number(node, number, source, "a place such as 0")
        if place != int(place):
            raise UsageError(f"{source}: line {number}: found {node!r}; expected a place such as 0")
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(KINDS)}"
            raise UsageError(f"{source}: line {number}: no kind of fault is called {kind!r}; {hint}")
        if rest not in ([], ["yes"], ["no"]):
            raise UsageError(f"{source}: line {number}: found {rest[0]!r}; expected yes or no")
        time_s = _number(seconds, number, source, "seconds")
        yield TraceFault(time_s=time_s, node=int(place), kind=kind, stays=rest == ["yes"])


def _fleet(lines: Sequence[tuple[int, str]], source: str) -> tuple[list[TraceFault], dict[str, int]]:
    names: dict[str, int] = {}
    present: set[str] = set()
    faults: list[TraceFault] = []
    for number, line in lines:
        ms, event, name = _fields(line, number, source, 3)
        if event not in ("add", "remove"):
            raise UsageError(f"{source}: line {number}: found {event!r}; expected add or remove")
        if event == "remove" and name not in present:
            raise UsageError(f"{source}: line {number}: {name!r} is removed and was not there")
        time_s = _number(ms, number, source, "milliseconds") / 1000
        place = names.setdefault(name, len(names))
        (present.add if event == "add" else present.discard)(name)
        faults.append(TraceFault(time_s=time_s, node=place, kind=JOIN if event == "add" else PREEMPTED))
    return faults, names


def _fields(line: str, number: int, source: str, columns: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) != columns:
        raise UsageError(f"{source}: line {number}: found {len(fields)} columns; expected {columns}, separated by tabs")
    return fields


def _number(text: str, number: int, source: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise UsageError(f"{source}: line {number}: found {text!r}; expected {what}, not negative")
    return value
