"""Traces of faults: time, place and kind of each fault; input of the simulator.

A trace is a sequence of ``TraceFault`` in order of time: drawn from a profile, written by hand for a test, or read from
a file of tab-separated lines. The first line determines the format:

| first line | each further line |
|---|---|
| ``seconds  node  kind`` | seconds since training began, place of the node, a kind of ``evidence.KINDS`` |
| ``seconds  node  kind  stays`` | the same, and ``yes`` if the machine stays faulty until it is replaced, else ``no`` |
| ``ms  event  node`` | a fleet of spot instances: milliseconds since the first line, ``add`` or ``remove``, name |

A message reports the first error, with file and line. Names of a fleet become places in order of first appearance; a
removed node keeps its place.
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
    """A fault of a trace.

    Args:
        time_s: seconds of virtual time since the start of the trace.
        node: place of the affected node, from 0.
        kind: name of a kind in ``evidence.KINDS``.
        stays: the machine stays faulty: workers on it fail again until it is replaced.
    """

    time_s: float
    node: int
    kind: str
    stays: bool = False


@attrs.frozen(kw_only=True)
class Trace:
    """Contents of a trace file.

    Args:
        source: the file's name.
        faults: faults in order of time.
        nodes: number of places.
        fleet: nodes come and go only by the trace; none runs before its first ``add``.
        lines: line number of each fault, for messages.
    """

    source: str
    faults: tuple[TraceFault, ...]
    nodes: int
    fleet: bool = False
    lines: tuple[int, ...] = ()

    def beyond(self, nodes: int) -> str:
        """Error message if the trace has a node that a job of ``nodes`` nodes lacks; else empty."""
        for fault, number in itertools.zip_longest(self.faults, self.lines):
            if fault.node >= nodes:
                where = f"{self.source}: line {number}" if number else self.source
                return f"{where}: names node {fault.node}; the job has the nodes 0 to {nodes - 1}"
        return ""


def parse(text: str, source: str) -> Trace:
    """Read a trace file.

    Args:
        text: contents of the file.
        source: its name, for messages.

    Raises:
        UsageError: with file, line, the text found and the text expected.
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
        raise UsageError(f"{source}: no faults after the header line")
    numbers = tuple(number for number, _ in lines[1:])
    for (before, after), number in zip(itertools.pairwise(faults), numbers[1:], strict=True):
        if after.time_s < before.time_s:
            raise UsageError(
                f"{source}: line {number}: not in order of time: {after.time_s:g} s follows {before.time_s:g} s"
            )
    return Trace(source=source, faults=tuple(faults), nodes=nodes, fleet=head == FLEET_HEAD, lines=numbers)


def _faults(lines: Sequence[tuple[int, str]], source: str, columns: int) -> Iterator[TraceFault]:
    for number, line in lines:
        seconds, node, kind, *rest = _fields(line, number, source, columns)
        place = _number(node, number, source, "a place such as 0")
        if place != int(place):
            raise UsageError(f"{source}: line {number}: found {node!r}; expected a place such as 0")
        if kind not in KINDS:
            near = difflib.get_close_matches(kind, KINDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"accepted: {', '.join(KINDS)}"
            raise UsageError(f"{source}: line {number}: unknown kind of fault {kind!r}; {hint}")
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
            raise UsageError(f"{source}: line {number}: remove of {name!r}, which was not added")
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
