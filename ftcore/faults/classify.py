"""Classification of one report: exit code, error message, last output, what a detector saw -> class, detail, role.

The text is read by the table of rules (``text.py``); here stands what the kind of report and the exit code add to it:

| the report | is read as |
|---|---|
| a node that is lost, a store, workers that cannot start | what its type says |
| an observation (``fault.observed``) | what its kind says, else its words |
| an exception | its words, unless the last output has louder ones |
| a death by signal | the signal, unless the last output has words that explain it |
| an exit code | the last output |

House rules: a text that says *another process went away* is collateral whatever else it says. A bare signal is the
strongest sign of a root but for hardware, because nothing that happens to a peer makes a process die by SIGKILL or
SIGSEGV. SIGABRT is how watchdogs and C++ exceptions end a process, so there any word counts.
"""

import functools
import re
import signal

import attrs

from ftcore.events.node import LOST
from ftcore.faults.codes import SHELL_TIMEOUT, signal_name
from ftcore.faults.rule import COLLATERAL, ROOT, UNSURE, Rule
from ftcore.faults.taxonomy import LINK_CUT, FaultClass
from ftcore.faults.text import MULTI, Diagnosis, TextReader
from ftcore.states.model import Report

__all__ = ["HEADLINE_MAX", "Reading", "classify", "signal_name"]

F = FaultClass

_PRELOAD = re.compile(r"^cannot preload |warm process ended \d+ times while it imported")
"""What an agent says of a round that it cannot serve because ``--preload`` is wrong: the store host is forked first."""

HEADLINE_MAX = 160
"""Characters of an error that stand in a summary; the event with the evidence holds it whole."""

OF_KIND = 90
"""The weight of what a kind of report, a signal or a detector says."""
LOUD = 70
"""Last output of this weight explains an end better than the exception that the error file holds, or than SIGSEGV."""
EXPLAINS_KILL = 90
"""Only the kernel and the scheduler know who sends SIGKILL and SIGTERM."""
EXPLAINS_ABORT = 20

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
_SHELL_SIGNALS = {
    128 + s: s
    for s in (*sorted(_CRASHES), signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # as a shell tells them
}

_WHOLE_NODE: dict[str, tuple[FaultClass, str]] = {
    "node.lost": (F.NODE_LOST, "silent"),
    "node.joined": (F.NODE_LOST, "replaced"),
    "node.left": (F.SIGNAL_PREEMPTION, "node-left"),
    "workers.stopped": (F.NODE_LOST, "self-fenced"),
    "action.failed": (F.UNKNOWN, "unanswered"),
    "order.refused": (F.UNKNOWN, "refused"),
    "store.failed": (F.NETWORK_RENDEZVOUS, "store-lost"),
}

LAUNCHER_LOST = (F.NODE_LOST, "launcher-lost")

_KINDS: dict[str, tuple[FaultClass, str, str]] = {
    "uce": (F.GPU_HW, "uce", ROOT),
    "collective": (F.NCCL_REMOTE_ERROR, "collective", UNSURE),
    "hang": (F.HANG, "", UNSURE),
    "straggler": (F.HANG, "straggler", ROOT),
    "loss-spike": (F.NUMERIC, "loss-spike", ROOT),
    "loss-nan": (F.NUMERIC, "loss-nan", ROOT),
    "loss-divergence": (F.NUMERIC, "loss-divergence", ROOT),
    "norm": (F.NUMERIC, "norm", ROOT),
    "norm-nan": (F.NUMERIC, "norm-nan", ROOT),
    "norm-divergence": (F.NUMERIC, "norm-divergence", ROOT),
    "norm-spike": (F.NUMERIC, "norm-spike", ROOT),
    "preemption-notice": (F.SIGNAL_PREEMPTION, "preemption-notice", ROOT),
}
"""What detectors see; who hangs or waits in a collective may well be a victim."""

_SOURCES: dict[str, tuple[FaultClass, str]] = {
    "health": (F.GPU_HW, "health-check"),
    "storage": (F.STORAGE, ""),
    "platform": (F.SIGNAL_PREEMPTION, "platform"),
}
"""What a source speaks for, when its words do not."""


MEASURED = 100
"""Weight of what was measured on the device itself: no line says it louder."""


@attrs.frozen
class Reading:
    """What one report means by itself.

    Args:
        report: the report.
        cls: its class.
        detail: the finer distinction.
        role: ``root``, ``collateral`` or ``unknown``.
        summary: one line for people.
        weight: how loudly it says so; see ``rule.py``.
        names: the rank that it blames, if any.
    """

    report: Report
    cls: FaultClass
    detail: str
    role: str
    summary: str
    weight: int = OF_KIND
    names: str = ""


def classify(report: Report, extra: tuple[Rule, ...] = ()) -> Reading:
    """Read one report by itself.

    Args:
        report: the report.
        extra: the job's own rules.
    """
    if report.type == "store.failed" and _PRELOAD.search(report.message):
        return Reading(report, F.CONFIG_ENV, "unstartable", ROOT, f"{report.node}: {report.message}")
    if report.type in _WHOLE_NODE:
        cls, detail = LAUNCHER_LOST if report.kind == LOST else _WHOLE_NODE[report.type]
        return Reading(report, cls, detail, ROOT, f"{report.node}: {report.message}")
    if report.type == "workers.unstartable":
        return Reading(report, F.CONFIG_ENV, "unstartable", ROOT, f"{report.node}: {report.message}")
    if report.kind == LINK_CUT[1] and report.type in ("standstill.judged", "health.judged"):
        weight = MEASURED if report.type == "health.judged" else OF_KIND
        return Reading(report, *LINK_CUT, ROOT, report.message, weight)
    if report.type == "health.judged":
        summary = f"{report.node} failed its health check: {report.message}"
        return Reading(report, F.GPU_HW, "health-check", ROOT, summary, weight=MEASURED)
    who = f"rank {report.rank} on {report.node}" if report.rank >= 0 else report.node
    if report.type == "standstill.judged":
        role = ROOT if report.kind in ("stopped", "disk", "absent") else UNSURE
        return Reading(report, F.HANG, report.kind, role, _shorten(report.message))
    if report.type == "fault.observed":
        return _observed(report, who, extra)
    if report.type == "log.matched":
        return _matched(report, who, extra)
    return _ended(report, who, extra)


def _observed(report: Report, who: str, extra: tuple[Rule, ...]) -> Reading:
    said = _headline(report) if report.message else report.kind or "a fault"
    summary = f"{who}: {said}"
    if report.kind in _KINDS:
        cls, detail, role = _KINDS[report.kind]
        return Reading(report, cls, detail, role, summary)
    read = _read(report.message, extra)
    if read.weight:
        return _reading(report, read, summary)
    if report.source in _SOURCES:
        cls, detail = _SOURCES[report.source]
        return Reading(report, cls, detail or report.kind, ROOT, summary)
    return Reading(report, F.UNKNOWN, report.kind, UNSURE, summary, weight=0)


def _matched(report: Report, who: str, extra: tuple[Rule, ...]) -> Reading:
    read = _read(report.message, extra)
    summary = f"{who}: {_headline(report)}"
    if not read.weight and report.kind in set(F):
        return Reading(report, F(report.kind), "", ROOT, summary, weight=LOUD)
    return _reading(report, read, summary)


def _ended(report: Report, who: str, extra: tuple[Rule, ...]) -> Reading:
    code = report.exitcode if report.exitcode is not None else 0
    number = -code if code < 0 else 0 if report.message else int(_SHELL_SIGNALS.get(code, 0))
    tail = _read(report.tail, extra)
    if report.message:  # it raised, and was ended by a signal only afterwards
        read = _read(report.message, extra)
        louder = tail.weight >= LOUD and tail.weight > read.weight
        return _by_text(report, who, tail if louder else read)
    if not number:
        return _by_text(report, who, tail)
    name = signal_name(number)
    if number == signal.SIGABRT and tail.weight >= EXPLAINS_ABORT:
        return _reading(report, tail, f"{who} ended with {name}: {tail.headline}")
    if number in _CRASHES:
        if tail.weight >= LOUD and tail.diagnosis.cls is not F.USER_CODE:
            return _reading(report, tail, f"{who} ended with {name}: {tail.headline}")
        return Reading(report, F.USER_CODE, name.lower(), ROOT, f"{who} crashed with {name}")
    if tail.weight >= EXPLAINS_KILL:
        return _reading(report, tail, f"{who} ended with {name}: {tail.headline}")
    return Reading(report, F.SIGNAL_PREEMPTION, name.lower(), ROOT, f"{who} was ended by {name}")


def _by_text(report: Report, who: str, read: "_Read") -> Reading:
    explained = read.weight > 0 and read.diagnosis.cls is not F.UNKNOWN
    if not explained and report.exitcode == SHELL_TIMEOUT and not report.message:
        return Reading(report, F.SIGNAL_PREEMPTION, "time-limit", ROOT, f"{who} ran into the limit of `timeout`")
    if explained:
        own = bool(report.message) and read.diagnosis.evidence[:1] and read.from_message(report)
        return _reading(report, read, f"{who}: {_headline(report) if own or not report.message else read.headline}")
    if report.message:
        return Reading(report, F.USER_CODE, "exception", ROOT, f"{who}: {_headline(report)}", weight=60)
    return Reading(report, F.USER_CODE, "exit", UNSURE, f"{who} exited with code {report.exitcode}", weight=0)


def _reading(report: Report, read: "_Read", summary: str) -> Reading:
    told = read.diagnosis
    role = read.role if told.role in (ROOT, MULTI) else told.role
    return Reading(report, told.cls, told.detail, role, summary, read.weight, told.root_rank)


@attrs.frozen
class _Read:
    """A text that was read.

    Args:
        text: the text.
        diagnosis: what it means.
        weight: of its loudest line; 0: none.
        role: of the rule that reads that line.
    """

    text: str
    diagnosis: Diagnosis
    weight: int
    role: str

    @property
    def headline(self) -> str:
        """The line that it rests on, short."""
        return _shorten(self.diagnosis.evidence[0]) if self.diagnosis.evidence else ""

    def from_message(self, report: Report) -> bool:
        """Whether it is the exception's text, not the last output's."""
        return self.text == report.message


@functools.lru_cache(maxsize=4096)
def _read(text: str, extra: tuple[Rule, ...]) -> _Read:
    """Read a text; remembered, because every report of a round is read again when the next one comes."""
    reader = TextReader(extra)
    for line in text.splitlines():
        reader.add(line)
    told = reader.result()
    best = reader.loudest()
    if best is None:
        return _Read(text, told, 0 if told.cls is F.UNKNOWN else LOUD, COLLATERAL if told.role == COLLATERAL else ROOT)
    return _Read(text, told, best.weight, best.rule.role)


def _headline(report: Report) -> str:
    """The exception's line: of the error file, or the last line of output that is not empty; of a long one its start.

    Advice that libraries add behind their error ("This is typically caused by ...") is left to the log files.
    """
    text = report.message or report.tail
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"exit code {report.exitcode}"
    return _shorten(lines[0] if report.message else lines[-1])


def _shorten(line: str) -> str:
    return line if len(line) <= HEADLINE_MAX else line.partition(". ")[0][:HEADLINE_MAX]
