"""Classification of one report: exit code, error message and last output -> class, detail, role.

The rules are data: one ordered table, the first that fits wins, each with an example that a test runs. House rule: a
text that says *another process went away* is collateral whatever else it says; a bare signal is the strongest sign of a
root, because nothing that happens to a peer makes a process die by SIGKILL or SIGSEGV.
"""

import re
import signal

import attrs

from ftcore.faults.taxonomy import FaultClass
from ftcore.states.model import Report

F = FaultClass


@attrs.frozen
class Rule:
    """One rule on text.

    Args:
        pattern: searched for in the error message, then in the last output.
        cls: the class if it is found.
        detail: the finer distinction.
        role: ``root``, ``collateral`` or ``unknown``.
        example: a text that it must find.
    """

    pattern: re.Pattern[str]
    cls: FaultClass
    detail: str
    role: str
    example: str


def _rule(pattern: str, cls: FaultClass, detail: str, role: str, example: str) -> Rule:
    return Rule(re.compile(pattern), cls, detail, role, example)


RULES: tuple[Rule, ...] = (
    _rule(
        r"(?i)connection (closed|reset) by peer|broken pipe|ncclRemoteError|remote process (exited|has failed)",
        F.COLLATERAL,
        "peer-gone",
        "collateral",
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:52710",
    ),
    _rule(
        r"(?i)application timeout caused pair closure|timed out waiting \d+ms for (recv|send)"
        r"|store.*(timed out|timeout)|DistStoreError|wait timeout after|The (client )?socket has (timed out|failed)"
        r"|Connection refused",
        F.COLLATERAL,
        "peer-silent",
        "collateral",
        "RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
    ),
    _rule(
        r"CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED",
        F.OOM_GPU,
        "",
        "root",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    _rule(r"\bMemoryError\b|Cannot allocate memory", F.OOM_HOST, "allocation", "root", "MemoryError"),
    _rule(
        r"No space left on device|Input/output error|Stale file handle|Read-only file system|Disk quota exceeded",
        F.STORAGE,
        "",
        "root",
        "OSError: [Errno 28] No space left on device: 'ckpt.pt'",
    ),
    _rule(
        r"ModuleNotFoundError|ImportError|unrecognized arguments|the following arguments are required"
        r"|cannot open shared object file|Address already in use",
        F.CONFIG_ENV,
        "",
        "root",
        "ModuleNotFoundError: No module named 'flash_attn'",
    ),
)

_PRELOAD = re.compile(r"^cannot preload |warm process ended \d+ times while it imported")
"""What an agent says of a round that it cannot serve because ``--preload`` is wrong: the store host is forked first."""

HEADLINE_MAX = 160
"""Characters of an error that stand in a summary; the event with the evidence holds it whole."""

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}


@attrs.frozen
class Reading:
    """What one report means by itself.

    Args:
        report: the report.
        cls: its class.
        detail: the finer distinction.
        role: ``root``, ``collateral`` or ``unknown``.
        summary: one line for people.
    """

    report: Report
    cls: FaultClass
    detail: str
    role: str
    summary: str


def classify(report: Report) -> Reading:
    """Read one report by itself."""
    if report.type == "store.failed" and _PRELOAD.search(report.message):
        return Reading(report, F.CONFIG_ENV, "unstartable", "root", f"{report.node}: {report.message}")
    if report.type in _WHOLE_NODE:
        cls, detail = _WHOLE_NODE[report.type]
        return Reading(report, cls, detail, "root", f"{report.node}: {report.message}")
    if report.type == "workers.unstartable":
        return Reading(report, F.CONFIG_ENV, "unstartable", "root", f"{report.node}: {report.message}")
    code = report.exitcode if report.exitcode is not None else 0
    who = f"rank {report.rank} on {report.node}"
    if code < 0:
        name = signal_name(-code)
        if report.message:  # it raised, and was ended by a signal only afterwards
            return _by_text(report, who)
        if -code in _CRASHES:
            return Reading(report, F.USER_CODE, name.lower(), "root", f"{who} crashed with {name}")
        return Reading(report, F.SIGNAL_PREEMPTION, name.lower(), "root", f"{who} was ended by {name}")
    return _by_text(report, who)


_WHOLE_NODE: dict[str, tuple[FaultClass, str]] = {
    "node.lost": (F.NODE_LOST, "silent"),
    "node.joined": (F.NODE_LOST, "replaced"),
    "node.left": (F.SIGNAL_PREEMPTION, "node-left"),
    "workers.stopped": (F.NODE_LOST, "self-fenced"),
    "action.failed": (F.UNKNOWN, "unanswered"),
    "store.failed": (F.NETWORK_RENDEZVOUS, "store-lost"),
}


def _by_text(report: Report, who: str) -> Reading:
    for text in (report.message, report.tail):
        for rule in RULES if text else ():
            if rule.pattern.search(text):
                return Reading(report, rule.cls, rule.detail, rule.role, f"{who}: {_headline(report)}")
    if report.message:
        return Reading(report, F.USER_CODE, "exception", "root", f"{who}: {_headline(report)}")
    return Reading(report, F.USER_CODE, "exit", "unknown", f"{who} exited with code {report.exitcode}")


def _headline(report: Report) -> str:
    """The exception's line: of the error file, or the last line of output that is not empty; of a long one its start.

    Advice that libraries add behind their error ("This is typically caused by ...") is left to the log files.
    """
    text = report.message or report.tail
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"exit code {report.exitcode}"
    line = lines[0] if report.message else lines[-1]
    return line if len(line) <= HEADLINE_MAX else line.partition(". ")[0][:HEADLINE_MAX]


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
