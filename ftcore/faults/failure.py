"""Which process of which node failed first, and with what: one line and one JSON object, for logs and for alerts.

House rules: failures are ordered, the root cause first; nothing here decides on that order again. The line is plain
text of the job's own words: whoever prints it makes it safe for its medium (``wording.printable``).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import msgspec

from ftcore.events.envelope import Event
from ftcore.events.worker import FaultObserved, StepTimes, WorkerFailed
from ftcore.faults.classify import signal_name
from ftcore.ids import SECOND
from ftcore.redaction import OVERLAP_CHARS, redacted
from ftcore.states.evidence import Report
from ftcore.wording import listed, plural, printable, timestamp_fields

MESSAGE_CHARS_MAX = 300
"""Most characters of a failure's message in the line; ``ftctl explain`` prints it with its traceback."""

NODES_SHOWN = 4


@attrs.frozen(kw_only=True)
class Failure:
    """One process or node that failed, with the fields of torchrun's failure record.

    Args:
        rank: global rank; None for a whole node.
        local_rank: rank on its node; None for a whole node.
        node: the node.
        restart: number of earlier rounds of the run.
        exitcode: exit code, negative for a signal; None if no process of the job is known to have ended.
        message: the exception from the error file, else the signal, else the last line of output.
        py_callstack: the traceback from the error file, or None.
        raised: when the exception was raised, by the error file, nanoseconds since the epoch; or None.
        time: when its agent noticed, nanoseconds since the epoch; on the master's clock if the agent reported no time,
            or its clock differs from the master's.
        seq: the fact in the log.
        last: the last steps of the node's workers before the failure, if the fact has them.
    """

    rank: int | None
    local_rank: int | None
    node: str
    restart: int
    exitcode: int | None
    message: str | None
    py_callstack: str | None
    raised: int | None
    time: int
    seq: int
    last: tuple[StepTimes, ...] = ()


def failure_of(event: Event, report: Report, restart: int) -> Failure:
    """The failure that a fact reports.

    Args:
        event: the fact.
        report: the evidence in it.
        restart: number of earlier rounds of the run.
    """
    data = event.data
    error = data.error if type(data) is WorkerFailed else None
    return Failure(
        rank=report.rank if report.rank >= 0 else None,
        local_rank=data.local_rank if type(data) is WorkerFailed else None,
        node=report.node,
        restart=restart,
        exitcode=report.exitcode,
        message=_message(report, data),
        py_callstack=error.py_callstack or None if error is not None else None,
        raised=error.timestamp * SECOND if error is not None and error.timestamp is not None else None,
        time=event.at.wall if event.at is not None else event.time,
        seq=report.seq,
        last=data.last if isinstance(data, WorkerFailed | FaultObserved) else (),
    )


def _message(report: Report, data: Any) -> str | None:
    if report.message:
        return report.message
    if report.exitcode is not None and report.exitcode < 0:
        pid = f" received by PID {data.pid}" if type(data) is WorkerFailed else ""
        return f"Signal {-report.exitcode} ({signal_name(-report.exitcode)}){pid}"
    lines: Sequence[str] = [line for line in report.tail.splitlines() if line.strip()]
    return lines[-1].strip() if lines else None


def in_order(failed: Iterable[tuple[Event, Failure]], root: int) -> tuple[Failure, ...]:
    """Failures with the root first, then by a clock common to all: that of one boot, else the master's.

    Args:
        failed: facts with their failures.
        root: seq of the fact that shows the root cause.
    """
    found = list(failed)
    boots = {event.at.boot if event.at is not None else "" for event, _ in found}
    shared = len(boots) == 1 and "" not in boots

    def place(entry: tuple[Event, Failure]) -> tuple[bool, int, int]:
        event, failure = entry
        clock = event.at.mono if shared and event.at is not None else event.time
        return failure.seq != root, clock, failure.seq

    return tuple(failure for _, failure in sorted(found, key=place))


def process_text(failure: Failure) -> str:
    """The process that failed, as ``rank 3 (local 1) on node1``, or the node."""
    if failure.rank is None:
        return failure.node
    local = f" (local {failure.local_rank})" if failure.local_rank is not None else ""
    return f"rank {failure.rank}{local} on {failure.node}"


def ending_text(failure: Failure) -> str:
    """How a process ended, as ``exit code 1: ValueError: bad batch`` or ``killed by SIGKILL``; on one line."""
    code = failure.exitcode
    parts = []
    if code is not None:
        parts.append(f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}")
    message = _short_and_safe(failure.message or "")
    if message and not (code is not None and code < 0 and message.startswith("Signal ")):
        parts.append(message)
    return ": ".join(parts) or "reason not known"


def short(text: str, most: int = MESSAGE_CHARS_MAX) -> str:
    """The beginning of a text on one line, without control characters."""
    cut = printable(text[: 2 * most].strip())
    return cut if len(cut) <= most and len(text) <= 2 * most else f"{cut[: most - 1]}…"


def _short_and_safe(text: str) -> str:
    """``short`` without secrets, which are replaced before the cut: a part of one is not found."""
    return short(redacted(text[: 2 * MESSAGE_CHARS_MAX + OVERLAP_CHARS]))


def first_text(
    failures: Sequence[Failure], nodes: Sequence[str], summary: str, early: str = "", further: Sequence[str] = ()
) -> str:
    """The first failure in one line; without one, the summary of the incident.

    Args:
        failures: the failures, the first one first.
        nodes: the incident's nodes.
        summary: the incident's summary.
        early: what ended before the first failure.
        further: for each failure whose report was not kept, its node.
    """
    if not failures:
        where = listed(nodes, NODES_SHOWN)
        text = _short_and_safe(summary)
        return f"{where}: {text}" if where and where not in text else text
    text = f"{process_text(failures[0])} failed first: {ending_text(failures[0])}"
    if early:
        text += f"; before it, {early}"
    others = [*(failure.node for failure in failures[1:]), *further]
    if not others:
        return text
    kept = f"; the diagnosis used the first {len(failures)}" if further else ""
    named = list(dict.fromkeys(others))
    return f"{text}; {plural(len(others), 'more failure')} followed, on {listed(named, NODES_SHOWN)}{kept}"


def failures_json(
    job: str,
    incident: str,
    named: tuple[str, str],
    failures: Sequence[Failure],
    opened: int,
    what: str,
    further: Sequence[str] = (),
) -> dict[str, Any]:
    """One object for other programs: the incident, the first failure, and the number of the others by node.

    Args:
        job: the job's name.
        incident: the incident's id.
        named: its class and the subclass.
        failures: its failures, the first one first.
        opened: when it was opened, nanoseconds since the epoch.
        what: the line of ``first_text``.
        further: as of ``first_text``.
    """
    first = failures[0] if failures else None
    followed: dict[str, int] = {}
    for node in (*(failure.node for failure in failures[1:]), *further):
        followed[node] = followed.get(node, 0) + 1
    return {
        "job": job,
        "incident": incident,
        "class": named[0],
        "detail": named[1],
        "what": what,
        "first": None if first is None else _fields(first),
        "followed": followed,
        **timestamp_fields("opened", opened),
    }


def _fields(failure: Failure) -> dict[str, Any]:
    fields = msgspec.to_builtins(failure)
    times = timestamp_fields("time", failure.time) | timestamp_fields("raised", failure.raised)
    return {name: value for name, value in fields.items() if name not in ("time", "raised")} | times
