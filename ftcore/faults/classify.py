"""Classification of one report: from exit code, error message, last output or observation to class, detail and role.

The table of rules reads the text (``text.py``). This module adds the kind of the report and the exit code:

| report | classified by |
|---|---|
| a lost node, a store, workers that cannot start | its type |
| an observation (``fault.observed``) | its kind, else its message |
| an exception | its message, unless the last output has a line of greater weight |
| the end by a signal | the signal, unless the last output explains it |
| an exit code | the last output |

House rules: a text that reports the end of *another process* is collateral whatever else it says. Apart from hardware
errors, a bare signal is the strongest evidence of a root cause: the end of a peer never causes SIGKILL or SIGSEGV. But
watchdogs and C++ exceptions end a process by SIGABRT, so there any explanation in the output counts.
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
from ftcore.states.evidence import Report

__all__ = ["HEADLINE_MAX", "Reading", "classify", "signal_name"]

F = FaultClass

_PRELOAD = re.compile(r"^cannot preload |warm process ended \d+ times while it imported")
"""An agent's error if ``--preload`` is wrong: the process of the store is forked first."""

HEADLINE_MAX = 160
"""Characters of an error in a summary; the event with the evidence has the full text."""

KIND_WEIGHT = 90
"""The weight of a kind of report, a signal or a detector's observation."""
DECISIVE = 70
"""Last output of this weight explains an end better than the exception in the error file, or than SIGSEGV."""
EXPLAINS_KILL = 90
"""Only the kernel and the scheduler know the sender of SIGKILL and SIGTERM."""
EXPLAINS_ABORT = 20

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
_SHELL_SIGNALS = {128 + s: s for s in (*sorted(_CRASHES), signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}

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
    "slowdown": (F.HANG, "slowdown", ROOT),
    "loss-spike": (F.NUMERIC, "loss-spike", ROOT),
    "loss-nan": (F.NUMERIC, "loss-nan", ROOT),
    "loss-divergence": (F.NUMERIC, "loss-divergence", ROOT),
    "norm": (F.NUMERIC, "norm", ROOT),
    "norm-nan": (F.NUMERIC, "norm-nan", ROOT),
    "norm-divergence": (F.NUMERIC, "norm-divergence", ROOT),
    "norm-spike": (F.NUMERIC, "norm-spike", ROOT),
    "preemption-notice": (F.SIGNAL_PREEMPTION, "preemption-notice", ROOT),
}
"""Kinds of observations; a rank that hangs or waits in a collective may be a victim."""

_SOURCES: dict[str, tuple[FaultClass, str]] = {
    "health": (F.GPU_HW, "health-check"),
    "storage": (F.STORAGE, ""),
    "platform": (F.SIGNAL_PREEMPTION, "platform"),
}
"""Class and detail by source, if the message matches no rule."""


MEASURED = 100
"""Weight of a measurement on the device itself: no line has a greater one."""


@attrs.frozen
class Reading:
    """The classification of one report.

    Args:
        report: the report.
        cls: its class.
        detail: the finer distinction.
        role: ``root``, ``collateral`` or ``unknown``.
        summary: one line of text.
        weight: weight of its evidence; see ``rule.py``.
        blamed: the rank that it blames; empty: none.
    """

    report: Report
    cls: FaultClass
    detail: str
    role: str
    summary: str
    weight: int = KIND_WEIGHT
    blamed: str = ""


def classify(report: Report, extra: tuple[Rule, ...] = ()) -> Reading:
    """Classify one report.

    Args:
        report: the report.
        extra: the job's custom rules.
    """
    if report.type == "store.failed" and _PRELOAD.search(report.message):
        return Reading(report, F.CONFIG_ENV, "unstartable", ROOT, f"{report.node}: {report.message}")
    if report.type in _WHOLE_NODE:
        cls, detail = LAUNCHER_LOST if report.kind == LOST else _WHOLE_NODE[report.type]
        return Reading(report, cls, detail, ROOT, f"{report.node}: {report.message}")
    if report.type == "workers.unstartable":
        return Reading(report, F.CONFIG_ENV, "unstartable", ROOT, f"{report.node}: {report.message}")
    if report.kind == LINK_CUT[1] and report.type in ("standstill.judged", "health.judged"):
        weight = MEASURED if report.type == "health.judged" else KIND_WEIGHT
        return Reading(report, *LINK_CUT, ROOT, report.message, weight)
    if report.type == "health.judged":
        summary = f"{report.node} failed its health check: {report.message}"
        return Reading(report, F.GPU_HW, "health-check", ROOT, summary, weight=MEASURED)
    subject = f"rank {report.rank} on {report.node}" if report.rank >= 0 else report.node
    if report.type == "standstill.judged":
        role = ROOT if report.kind in ("stopped", "disk", "absent", "loader") else UNSURE
        return Reading(report, F.HANG, report.kind, role, _shorten(report.message))
    if report.type == "fault.observed":
        return _observed(report, subject, extra)
    if report.type == "log.matched":
        return _matched(report, subject, extra)
    return _ended(report, subject, extra)


def _observed(report: Report, subject: str, extra: tuple[Rule, ...]) -> Reading:
    text = _headline(report) if report.message else report.kind or "a fault"
    summary = f"{subject}: {text}"
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


def _matched(report: Report, subject: str, extra: tuple[Rule, ...]) -> Reading:
    read = _read(report.message, extra)
    summary = f"{subject}: {_headline(report)}"
    if not read.weight and report.kind in set(F):
        return Reading(report, F(report.kind), "", ROOT, summary, weight=DECISIVE)
    return _reading(report, read, summary)


def _ended(report: Report, subject: str, extra: tuple[Rule, ...]) -> Reading:
    code = report.exitcode if report.exitcode is not None else 0
    number = -code if code < 0 else 0 if report.message else int(_SHELL_SIGNALS.get(code, 0))
    tail = _read(report.tail, extra)
    if report.message:  # an exception, even if a signal ended the process afterwards
        read = _read(report.message, extra)
        stronger = tail.weight >= DECISIVE and tail.weight > read.weight
        return _by_text(report, subject, tail if stronger else read)
    if not number:
        return _by_text(report, subject, tail)
    name = signal_name(number)
    if number == signal.SIGABRT and tail.weight >= EXPLAINS_ABORT:
        return _reading(report, tail, f"{subject} ended with {name}: {tail.headline}")
    if number in _CRASHES:
        if tail.weight >= DECISIVE and tail.diagnosis.cls is not F.USER_CODE:
            return _reading(report, tail, f"{subject} ended with {name}: {tail.headline}")
        return Reading(report, F.USER_CODE, name.lower(), ROOT, f"{subject} crashed with {name}")
    if tail.weight >= EXPLAINS_KILL:
        return _reading(report, tail, f"{subject} ended with {name}: {tail.headline}")
    return Reading(report, F.SIGNAL_PREEMPTION, name.lower(), ROOT, f"{subject} was ended by {name}")


def _by_text(report: Report, subject: str, read: "_TextRead") -> Reading:
    explained = read.weight > 0 and read.diagnosis.cls is not F.UNKNOWN
    if not explained and report.exitcode == SHELL_TIMEOUT and not report.message:
        summary = f"{subject} exceeded the time limit of `timeout`"
        return Reading(report, F.SIGNAL_PREEMPTION, "time-limit", ROOT, summary)
    if explained:
        own = bool(report.message) and read.diagnosis.evidence[:1] and read.from_message(report)
        return _reading(report, read, f"{subject}: {_headline(report) if own or not report.message else read.headline}")
    if report.message:
        return Reading(report, F.USER_CODE, "exception", ROOT, f"{subject}: {_headline(report)}", weight=60)
    return Reading(report, F.USER_CODE, "exit", UNSURE, f"{subject} exited with code {report.exitcode}", weight=0)


def _reading(report: Report, read: "_TextRead", summary: str) -> Reading:
    diagnosis = read.diagnosis
    role = read.role if diagnosis.role in (ROOT, MULTI) else diagnosis.role
    return Reading(report, diagnosis.cls, diagnosis.detail, role, summary, read.weight, diagnosis.root_rank)


@attrs.frozen
class _TextRead:
    """A text with its diagnosis.

    Args:
        text: the text.
        diagnosis: its diagnosis.
        weight: of its line of greatest weight; 0: no rule matched.
        role: of the rule that matched that line.
    """

    text: str
    diagnosis: Diagnosis
    weight: int
    role: str

    @property
    def headline(self) -> str:
        """The line that the diagnosis rests on, shortened."""
        return _shorten(self.diagnosis.evidence[0]) if self.diagnosis.evidence else ""

    def from_message(self, report: Report) -> bool:
        """Whether the text is the exception's, not the last output."""
        return self.text == report.message


@functools.lru_cache(maxsize=4096)
def _read(text: str, extra: tuple[Rule, ...]) -> _TextRead:
    """Read a text; cached, because every new report of a round makes all of its reports be read again."""
    reader = TextReader(extra)
    for line in text.splitlines():
        reader.add(line)
    diagnosis = reader.result()
    best = reader.strongest()
    if best is None:
        weight = 0 if diagnosis.cls is F.UNKNOWN else DECISIVE
        return _TextRead(text, diagnosis, weight, COLLATERAL if diagnosis.role == COLLATERAL else ROOT)
    return _TextRead(text, diagnosis, best.weight, best.rule.role)


def _headline(report: Report) -> str:
    """Return the exception's line from the error file, else the last line of output; a long one is shortened.

    Advice that libraries append to their errors ("This is typically caused by ...") is cut off.
    """
    text = report.message or report.tail
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"exit code {report.exitcode}"
    return _shorten(lines[0] if report.message else lines[-1])


def _shorten(line: str) -> str:
    return line if len(line) <= HEADLINE_MAX else line.partition(". ")[0][:HEADLINE_MAX]
