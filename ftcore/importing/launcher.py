"""Lines of launchers and schedulers: what torchrun, slurmstepd and srun report of processes.

The formats are those of PyTorch (``torch/distributed/elastic``), Slurm 23 to 25 and the kernel. Pure.
"""

import re
from collections.abc import Callable

import attrs

from ftcore.importing.model import Act, SourceTime


@attrs.frozen(kw_only=True)
class LauncherLine:
    """What a line of a launcher or scheduler says.

    Args:
        act: what happened.
        fields: the further fields of the sighting.
        begins: a new attempt begins with this line.
        attempt: number of the attempt, if the line has it.
        when: the time, if the line has another one than its stamp.
    """

    act: Act
    fields: dict[str, object] = attrs.field(factory=dict)
    begins: bool = False
    attempt: int | None = None
    when: SourceTime | None = None


def _failed(found: "re.Match[str]") -> LauncherLine:
    fields: dict[str, object] = {"code": int(found[1]), "local_rank": int(found[2]), "pid": int(found[3])}
    return LauncherLine(act=Act.FAILED, fields=fields)


def _signalled(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(act=Act.STOPPED, fields={"pid": int(found[1])})


def _restart(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(act=Act.RESTARTED)


def _begin(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(act=Act.STARTED, begins=True)


def _child_failed(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(
        act=Act.ENDED,
        fields={"outcome": "failed", "code": 1, "source": "torchrun", "text": "ChildFailedError: no restart is left"},
    )


def _succeeded(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(act=Act.FINISHED)


def _platform(found: "re.Match[str]") -> LauncherLine:
    host = found.groupdict().get("host") or ""
    return LauncherLine(act=Act.OBSERVED, fields={"source": "platform", "host": host})


def _node_fail(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(act=Act.LOST, fields={"host": found["host"], "source": "slurm"})


def _requeue(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(act=Act.ENDED, fields={"outcome": "stopped", "code": 5, "source": "slurm", "text": found[0]})


_SIGNALS = {
    "Killed": 9,
    "Out Of Memory": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Terminated": 15,
    "Floating point exception": 8,
    "Illegal instruction": 4,
}
"""Signals by the text that srun prints (``strsignal``, and its own one for memory)."""


def _srun(found: "re.Match[str]") -> LauncherLine:
    code = int(found["code"]) if found["code"] else -_SIGNALS[found["signal"]]
    return LauncherLine(act=Act.FAILED, fields={"host": found["host"], "rank": int(found["task"]), "code": code})


def _launcher_signal(found: "re.Match[str]") -> LauncherLine:
    return LauncherLine(act=Act.OBSERVED, fields={"source": "platform"})


_PATTERNS: tuple[tuple[str, "re.Pattern[str]", Callable[["re.Match[str]"], LauncherLine]], ...] = tuple(
    (literal, re.compile(pattern), read)
    for literal, pattern, read in (
        ("exitcode: ", r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5}) \(pid: (\d{1,9})\)", _failed),
        (" closing signal ", r"Sending process (\d{1,9}) closing signal (\w{1,12})", _signalled),
        ("will restart worker group", r"will restart worker group", _restart),
        ("Rendezvous complete for workers", r"Rendezvous complete for workers", _begin),
        ("Rendezvous'ed result", r"Rendezvous'ed result", _begin),
        ("ChildFailedError", r"\bChildFailedError:", _child_failed),
        ("successfully finished", r"worker group successfully finished", _succeeded),
        ("SUCCEEDED state", r"group \S{0,40} ?enter SUCCEEDED state", _succeeded),
        ("got signal: ", r"SignalException: Process \d{1,9} got signal: \d{1,2}", _launcher_signal),
        ("error: Detected ", r"slurmstepd\S{0,80}: error: Detected \d{1,9} oom.kill event", _platform),
        (
            "DUE TO JOB REQUEUE",
            r"slurmstepd\S{0,80}: error: \*{3} (?:JOB|STEP) \S{1,40} ON \S{1,80} .{0,60}DUE TO JOB REQUEUE",
            _requeue,
        ),
        (
            "CANCELLED AT",
            r"slurmstepd\S{0,80}: error: \*{3} (?:JOB|STEP) \S{1,40} ON (?P<host>\S{1,80}) CANCELLED AT",
            _platform,
        ),
        ("not responding, setting DOWN", r"Nodes (?P<host>\S{1,80}) not responding, setting DOWN", _node_fail),
        ("on failed node ", r"Killing \S{1,40} on failed node (?P<host>[\w.-]{1,80})", _node_fail),
        ("failure of node ", r"requeue job \S{1,40} due to failure of node (?P<host>[\w.-]{1,80})", _node_fail),
        ("Node failure on ", r"srun: error: Node failure on (?P<host>[\w.-]{1,80})", _node_fail),
        (
            "srun: error: ",
            r"srun: error: (?P<host>[\w.-]{1,80}): tasks? (?P<task>\d{1,6})[\d,\-]{0,200}: "
            r"(?:Exited with exit code (?P<code>\d{1,3})|(?P<signal>Killed|Segmentation fault|Aborted|Bus error"
            r"|Terminated|Floating point exception|Illegal instruction|Out Of Memory))",
            _srun,
        ),
    )
)
"""A literal that is looked for first, the pattern, and its reader."""


def read_launcher_line(line: str) -> LauncherLine | None:
    """What a line of a launcher or scheduler says; None: it is none.

    Args:
        line: the line, without terminal codes.
    """
    head = line[:600]
    for literal, pattern, read in _PATTERNS:
        if literal in head and (found := pattern.search(head)) is not None:
            return read(found)
    return None


_ITEM = re.compile(r"^\s{0,8}(time|host|rank|exitcode|error_file|traceback)\s{0,8}: (.*)$")
_RANK = re.compile(r"^(\d{1,7}) \(local_rank: (\d{1,5})\)")
_CODE = re.compile(r"^(-?\d{1,5}) \(pid: (\d{1,9})\)")
_NAMED = re.compile(r"^(\S.{0,400}) FAILED\s*$")
SUMMARY_LINES_MAX = 400
"""Most lines of the traceback of one failure in a summary."""


@attrs.define(kw_only=True)
class SummaryEntry:
    """One failure of torchrun's summary.

    Args:
        number: number of its first line in the file.
        fields: its fields by name.
        trace: the lines of its traceback.
    """

    number: int
    fields: dict[str, str] = attrs.field(factory=dict)
    trace: list[str] = attrs.field(factory=list)

    @property
    def ranks(self) -> tuple[int, int] | None:
        """Global and local rank."""
        found = _RANK.match(self.fields.get("rank", ""))
        return (int(found[1]), int(found[2])) if found is not None else None

    @property
    def code_and_pid(self) -> tuple[int, int] | None:
        """Exit code and process."""
        found = _CODE.match(self.fields.get("exitcode", ""))
        return (int(found[1]), int(found[2])) if found is not None else None

    @property
    def exception(self) -> str:
        """The exception's line, the last line of the traceback that is not indented; empty: there is none."""
        trace = [line for line in self.trace if line.strip()]
        if len(trace) < 2:
            return ""
        outer = min(len(line) - len(line.lstrip()) for line in trace[1:])
        ends = [i for i, line in enumerate(trace) if i and len(line) - len(line.lstrip()) == outer]
        return "\n".join(line.strip() for line in trace[ends[-1] :]) if ends else ""


class SummaryReader:
    """Reads torchrun's summary of failures; other lines are ignored."""

    def __init__(self) -> None:
        self._entry: SummaryEntry | None = None
        self._inside = False
        self.script = ""
        self._rule = False

    def add(self, number: int, line: str) -> SummaryEntry | None:
        """Read a line, and return the entry that ends before it, if any.

        Args:
            number: its number in the file.
            line: the line, without prefix.
        """
        text = line.strip()
        if text and not text.strip("=-"):
            done, self._entry = self._entry, None
            self._inside = self._inside and text[0] != "="
            self._rule = text[0] == "="
            return done
        if self._rule and (found := _NAMED.match(text)) is not None:
            self.script, self._inside = found[1], True
        self._rule = False
        if not self._inside:
            return None
        done = None
        found = _ITEM.match(line)
        if found is not None and found[1] == "time":
            done, self._entry = self._entry, SummaryEntry(number=number)
        elif re.match(r"^\s{0,4}\[\d{1,6}\]:\s*$", line) or text in (
            "Failures:",
            "Root Cause (first observed failure):",
        ):
            done, self._entry = self._entry, None
        if self._entry is not None:
            if found is not None and (found[1] not in self._entry.fields):
                self._entry.fields[found[1]] = found[2].strip()
                if found[1] == "traceback":
                    self._entry.trace.append(found[2])
            elif "traceback" in self._entry.fields and len(self._entry.trace) < SUMMARY_LINES_MAX:
                self._entry.trace.append(line)
        return done

    @property
    def inside(self) -> bool:
        """Whether the last line belongs to a summary."""
        return self._inside

    def end(self) -> SummaryEntry | None:
        """The entry that was open at the end of the file."""
        done, self._entry = self._entry, None
        return done
