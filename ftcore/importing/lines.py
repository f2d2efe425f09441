"""Reads the lines of any log: time stamps, steps, matched rules, what launchers and schedulers report.

House rules: one pass, bounded memory. A line without a time stamp has the time of the line before it, with the time to
the next stamp as its uncertainty. Lines are attributed to the rank that their prefix names, if any.
"""

import re
from collections import deque
from typing import Any

import attrs

from ftcore.events.worker import CURVES
from ftcore.faults import speakers
from ftcore.faults.pattern import to_bytes
from ftcore.faults.table import table
from ftcore.faults.taxonomy import FaultClass
from ftcore.faults.text import Diagnosis, TextReader, classify_text
from ftcore.ids import SECOND
from ftcore.importing.elastic_events import MARK, ElasticEvents
from ftcore.importing.launcher import LauncherLine, SummaryEntry, SummaryReader, read_launcher_line
from ftcore.importing.model import UNKNOWN, Act, Collected, FileReading, Sighting, SourceTime, TimedLine
from ftcore.importing.stamps import read_time, stamp_of

TAIL_BYTES = 4096
"""Output of a rank that is kept as evidence."""
STEPS_MAX = 4096
"""Steps of one rank that are kept; of more, every second one."""
HITS_MAX = 512
"""Matched lines of one rank that are kept."""
VOICE_LINE = 2048
"""Characters that are kept of a line of it."""
RANKS_MAX = 4096
LINE_CHARS = 16384
"""Characters of a line that are classified: of a longer one the start and the end."""
STALE_STEPS = 20
"""Steps after which evidence is no longer that of a coming failure."""
TIMES_MAX = 200_000

_COLOUR = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[A-Za-z]|\][^\x07]{0,200}\x07)")
STEP = re.compile(
    r"(?i)\b(?:global[_ ]?)?(?:step|iter|iteration)s?['\"]?\s{0,4}[:=#/]?\s{0,8}(\d{1,12})\b"
    r"(?!\s{0,2}(?:ms|s|sec|seconds)\b)"
)
_LOSS = re.compile(r"(?i)\bloss['\"]?\s{0,4}[:=]?\s{0,4}([-+]?(?:\d{1,12}(?:\.\d{1,12})?(?:e[-+]?\d{1,3})?|nan|inf))\b")
_SOURCE_LINE = re.compile(r"^\s{2,}\S|^\s{0,12}File \"")
_PREFIX = re.compile(r"^(?:\[(?:default|rank|Rank)\s?\d{1,6}\]:\s?){1,2}")
_ATTEMPT = re.compile(r"restart_count=(\d{1,6})")
NOISE = ("launcher-kills", "launcher-summary", "launcher-wraps", "agent-stops-siblings")
"""Rules for lines of a launcher about other processes: never evidence of a rank of its own."""


@attrs.define
class _Voice:
    """What one rank (or the whole file) wrote in one attempt."""

    tail: deque[str] = attrs.field(factory=deque)
    tail_bytes: int = 0
    steps: list[int] = attrs.field(factory=list)
    seen: int = 0
    every: int = 1
    last_step: int | None = None
    evidence: list[str] = attrs.field(factory=list)
    evidence_at: int | None = None
    counts: dict[str, int] = attrs.field(factory=dict)

    def keep(self, line: str) -> None:
        """Keep a line of output."""
        if len(line) > VOICE_LINE:
            line = f"{line[: VOICE_LINE // 2]} ... {line[-VOICE_LINE // 2 :]}"
        self.tail.append(line)
        self.tail_bytes += len(line) + 1
        while self.tail_bytes > TAIL_BYTES and len(self.tail) > 1:
            self.tail_bytes -= len(self.tail.popleft()) + 1


class LineReader:
    """Reads one file line by line; ``finish`` returns what it shows.

    Args:
        reading: of the file; updated.
        collected: names and times are added to it.
        year: for time stamps without one.
        step: pattern of a completed step; its first group is the number.
        host, run, attempt, local_rank: as far as the file's path shows them.
    """

    def __init__(
        self,
        reading: FileReading,
        collected: Collected,
        *,
        year: int,
        step: "re.Pattern[str]" = STEP,
        host: str = "",
        run: int = 0,
        attempt: int | None = None,
        local_rank: int | None = None,
    ) -> None:
        self._reading, self._collected, self._year, self._step = reading, collected, year, step
        self._host, self._run, self._local_rank = host, run, local_rank
        self._fixed = attempt is not None
        self._attempt = attempt or 0
        self._table = table(())
        self._voices: dict[int | None, _Voice] = {}
        self._found: list[Sighting] = []
        self._undated: list[int] = []
        self._last: SourceTime | None = None
        self._summary = SummaryReader()
        self._events = ElasticEvents()
        self._trouble = False
        self._restarting = False
        self._begun = False
        self._text = TextReader()
        self._since = 0
        self._best: tuple[int, int, SourceTime] | None = None

    def add(self, number: int, line: str) -> None:
        """Read a line.

        Args:
            number: its number, from 1.
            line: the line; a long one is already cut.
        """
        reading = self._reading
        reading.lines = number
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        stamp = stamp_of(line, self._year)
        if stamp is not None:
            self._stamped(stamp, number)
        when = stamp if stamp is not None else self._between()
        speaker = speakers.speaker(line)
        rank = int(speaker) if speaker.isdecimal() else None
        text = _PREFIX.sub("", line)
        event = self._events.read(line) if MARK in line else None
        if event is not None:
            self._launcher(event, number, line, when, rank)
            return
        if not self._fixed:
            half = LINE_CHARS // 2
            self._text.add(line if len(line) <= LINE_CHARS else f"{line[:half]} ... {line[-half:]}")
        entry = self._summary.add(number, text)
        if entry is not None:
            self._failure(entry)
        said = read_launcher_line(line)
        if said is not None:
            self._launcher(said, number, line, when, rank)
            return
        if self._in_summary(text):
            return
        self._output(number, line, when, rank, stamped=stamp is not None)

    def _in_summary(self, text: str) -> bool:
        if self._summary.inside:
            self._reading.understood += 1
        return self._summary.inside

    def _stamped(self, stamp: SourceTime, number: int) -> None:
        assert stamp.ns is not None
        reading, last = self._reading, self._last
        if self._undated:
            self._date(stamp)
        reading.timed += 1
        reading.first = reading.first or stamp
        reading.last = self._last = stamp
        times = self._collected.times
        if len(times) < TIMES_MAX and (last is None or last.ns is None or stamp.ns - last.ns >= SECOND):
            times.append(TimedLine(stamp, self._host, f"{reading.name}:{number}"))

    def _between(self) -> SourceTime:
        """The moment of a line without a time stamp."""
        if self._last is None:
            return UNKNOWN
        return attrs.evolve(self._last, basis="between", error_s=None)

    def _date(self, stamp: SourceTime) -> None:
        """Bound the times of the lines since the last stamp by the next one."""
        assert stamp.ns is not None
        for index in self._undated:
            one = self._found[index]
            if one.when.ns is None:
                when = attrs.evolve(stamp, basis="after", error_s=None)
            else:
                when = attrs.evolve(one.when, error_s=max(1.0, (stamp.ns - one.when.ns) / SECOND))
            self._found[index] = attrs.evolve(one, when=when)
        self._undated.clear()

    def _voice(self, rank: int | None) -> _Voice:
        if rank not in self._voices and len(self._voices) >= RANKS_MAX:
            rank = None
        return self._voices.setdefault(rank, _Voice())

    def _keep(self, sighting: Sighting) -> None:
        if sighting.when.basis in ("between", "bound"):
            self._undated.append(len(self._found))
        self._found.append(sighting)

    def _sighting(self, act: Act, number: int, when: SourceTime, rank: int | None, **fields: Any) -> Sighting:
        known: dict[str, Any] = {
            "act": act,
            "place": f"{self._reading.name}:{number}",
            "when": when,
            "host": self._host,
            "run": self._run,
            "attempt": self._attempt,
            "rank": rank,
            "local_rank": self._local_rank,
        }
        return Sighting(**{**known, **{name: value for name, value in fields.items() if value not in (None, "")}})

    def _launcher(self, said: LauncherLine, number: int, line: str, when: SourceTime, rank: int | None) -> None:
        self._reading.understood += 1
        act, fields, begins = said.act, said.fields, said.begins
        if not self._fixed:
            named = _ATTEMPT.search(line)
            if said.attempt is not None:
                self._next_attempt(said.attempt)
            elif named is not None and begins:
                self._next_attempt(int(named[1]))
            elif (begins and self._trouble) or (
                act in (Act.FAILED, Act.STOPPED) and "pid" in fields and self._restarting
            ):
                self._next_attempt(self._attempt + 1)
        given: dict[str, Any] = {"text": line[:2000], **fields}
        if self._host:
            given.pop("host", None)
        self._keep(self._sighting(act, number, said.when or when, given.pop("rank", rank), **given))
        if act is Act.FAILED:
            # torchrun reports one failure of an attempt, after it has stopped the other workers
            self._trouble = True
            self._restarting = self._restarting or "pid" in fields
        elif act is Act.STARTED:
            self._restarting = False
        elif act is Act.ENDED and fields.get("source") == "slurm" and not self._fixed:
            self._next_run()

    def _next_run(self) -> None:
        """What follows in the file is of the next submission: a requeued job may append to its log."""
        self._close_voices()
        self._run += 1
        self._attempt, self._trouble, self._restarting, self._begun = 0, False, False, False

    def _next_attempt(self, number: int) -> None:
        if number == self._attempt:
            return
        self._close_voices()
        self._attempt, self._trouble, self._restarting, self._begun = number, False, False, False

    def _failure(self, entry: SummaryEntry) -> None:
        """Keep a failure of torchrun's summary."""
        ranks, ended = entry.ranks, entry.code_and_pid
        if ranks is None or ended is None:
            return
        when = read_time(entry.fields.get("time", "")) or UNKNOWN
        exception = entry.exception if entry.fields.get("error_file", "<N/A>") != "<N/A>" else ""
        self._keep(
            self._sighting(
                Act.FAILED,
                entry.number,
                when,
                ranks[0],
                local_rank=ranks[1],
                host=self._host or entry.fields.get("host", ""),
                code=ended[0],
                pid=ended[1],
                text=exception,
                callstack="\n".join(entry.trace)[:TAIL_BYTES] if exception else "",
            )
        )

    def _output(self, number: int, line: str, when: SourceTime, rank: int | None, *, stamped: bool) -> None:
        """Read a line of a worker's output."""
        voice = self._voice(rank)
        if line.strip():
            if not self._begun:
                self._begun = True
                self._keep(self._sighting(Act.OUTPUT, number, when, rank))
            voice.keep(line)
        found = self._step.search(line[:2000])
        if found is not None and not _SOURCE_LINE.match(line):
            try:
                step = int(found[1] if found.re.groups else found[0])
            except (ValueError, TypeError, IndexError):
                step = -1
            if 0 <= step < 1 << 53:
                self._stepped(number, line, when, rank, step)
                return
        if _SOURCE_LINE.match(line) and 'File "' not in line and voice.evidence_at is None:
            return
        rule = self._table.read(to_bytes(line))
        if rule is not None and rule.weight > 0 and rule.name not in NOISE and not _SOURCE_LINE.match(line):
            self._reading.understood += 1
            if voice.evidence_at is None:
                voice.evidence_at = number
            self._since = 0
            if self._best is None or rule.weight > self._best[0]:
                self._best = (rule.weight, number, when)
            if rule.live and stamped:
                self._matched(number, line, when, rank, rule.name, str(rule.cls), voice)

    def _matched(
        self, number: int, line: str, when: SourceTime, rank: int | None, rule: str, cls: str, voice: _Voice
    ) -> None:
        count = voice.counts[rule] = voice.counts.get(rule, 0) + 1
        if count == 1 and len(voice.counts) <= HITS_MAX:
            self._keep(self._sighting(Act.MATCHED, number, when, rank, text=line[:2000], rule=rule, cls=cls))

    def _stepped(self, number: int, line: str, when: SourceTime, rank: int | None, step: int) -> None:
        self._reading.understood += 1
        voice = self._voice(rank)
        if voice.last_step is not None and step <= voice.last_step and self._trouble_of(voice) and not self._fixed:
            self._next_attempt(self._attempt + 1)
            voice = self._voice(rank)
        self._went_on(voice)
        voice.last_step = step
        voice.seen += 1
        if voice.seen % voice.every:
            return
        voice.steps.append(len(self._found))
        loss = _LOSS.search(line[:2000])
        value = float(loss[1]) if loss is not None else None
        self._keep(self._sighting(Act.STEPPED, number, when, rank, step=step, loss=value))
        if len(voice.steps) >= STEPS_MAX:
            self._thin(voice)

    def _went_on(self, voice: _Voice) -> None:
        """A step was completed: what looked like a failure of this rank before it was none."""
        voice.evidence_at = None
        self._since += 1
        if self._best is not None and self._since >= STALE_STEPS:
            self._text, self._best = TextReader(), None

    def _thin(self, voice: _Voice) -> None:
        """Forget every second step of a rank."""
        gone = set(voice.steps[1:-1:2])
        moved: dict[int, int] = {}
        kept: list[Sighting] = []
        for index, one in enumerate(self._found):
            if index not in gone:
                moved[index] = len(kept)
                kept.append(one)
        self._found = kept
        self._undated = [moved[index] for index in self._undated if index in moved]
        for one_voice in self._voices.values():
            one_voice.steps = [moved[index] for index in one_voice.steps if index in moved]
        voice.every *= 2

    def _trouble_of(self, voice: _Voice) -> bool:
        return self._trouble or any(each.evidence_at is not None for each in self._voices.values())

    def _close_voices(self) -> None:
        """Keep the last output of every rank whose evidence was not followed by a step."""
        for rank, voice in self._voices.items():
            if voice.evidence_at is not None or voice.tail:
                number = voice.evidence_at or self._reading.lines
                self._keep(
                    self._sighting(
                        Act.OBSERVED if voice.evidence_at is not None and self._fixed else Act.OUTPUT,
                        number,
                        self._when_of(number),
                        rank,
                        tail="\n".join(voice.tail),
                        step=voice.last_step,
                        source="log",
                    )
                )
        if not self._fixed:
            self._diagnose()
        self._voices.clear()

    def _diagnose(self) -> None:
        """Keep the diagnosis of the text of an attempt, if its end looks like a failure."""
        diagnosis, best = self._text.result(), self._best
        self._text, self._best, self._since = TextReader(), None, 0
        kind = _kind(diagnosis)
        ends = any(voice.evidence_at is not None for voice in self._voices.values())
        steps = any(voice.last_step is not None for voice in self._voices.values())
        unknown = diagnosis.cls is FaultClass.UNKNOWN
        if diagnosis.faultless or (unknown and steps) or not (ends or kind or not steps):
            return
        number, when = (best[1], best[2]) if best is not None else (self._reading.lines, self._between())
        rank = int(diagnosis.root_rank) if diagnosis.root_rank.isdecimal() else None
        if rank is not None and rank >= 1 << 20:
            rank = None
        self._reading.understood += 1
        message = self._message(diagnosis, rank)
        self._keep(self._sighting(Act.OBSERVED, number, when, rank, text=message, rule=kind, source="log"))

    def _message(self, diagnosis: Diagnosis, rank: int | None) -> str:
        """The lines with this diagnosis: the last output with its traceback if it is enough, else the evidence."""
        evidence = "\n".join(diagnosis.evidence) or diagnosis.reason
        for voice in (self._voices.get(rank), self._voices.get(None)):
            tail = "\n".join(voice.tail) if voice is not None else ""
            if tail and (told := classify_text(tail)).cls is diagnosis.cls and told.detail == diagnosis.detail:
                return tail
        return evidence

    def _when_of(self, number: int) -> SourceTime:
        place = f"{self._reading.name}:{number}"
        known = next((one.when for one in reversed(self._found) if one.place == place), None)
        return known or self._between()

    def finish(self) -> list[Sighting]:
        """Everything that the file shows."""
        entry = self._summary.end()
        if entry is not None:
            self._failure(entry)
        self._close_voices()
        if self._summary.script and not self._collected.argv:
            self._collected.argv = tuple(self._summary.script.split())
        return self._found


def _kind(diagnosis: Diagnosis) -> str:
    """The kind of ``fault.observed`` of a diagnosis that rests on numbers or progress; empty: its lines tell it."""
    if diagnosis.rule not in ("curve", "progress"):
        return ""
    if diagnosis.detail in (*CURVES, "straggler"):
        return diagnosis.detail
    return "hang" if diagnosis.cls is FaultClass.HANG else ""
