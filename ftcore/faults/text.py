"""Diagnosis of a text: the fault, the rank that caused it, and the usual action.

The text may be from one rank or many, and cover a moment or days. The table reads each line; the line of greatest
weight is the root cause (``rule.py``), of equals the earliest. What a line says of another rank counts for that rank.
If no line has more weight than a signal, the numbers and stacks in the text are considered as well.

House rules: source lines in a traceback are never evidence. A class comes from a rule only, else it is ``unknown``,
with the lines that resemble a failure most. Memory is bounded, so a text of any length can be read line by line.
"""

import re
from collections import deque

import attrs

from ftcore.faults import speakers
from ftcore.faults.context import ExceptionOrigin, LineMatch, aborted_together, adjust_weights, rule_at_place
from ftcore.faults.pattern import to_bytes
from ftcore.faults.progress import ProgressCollector
from ftcore.faults.rule import COLLATERAL, ROOT, UNSURE, Rule
from ftcore.faults.series import Series
from ftcore.faults.stacks import Stacks
from ftcore.faults.table import table
from ftcore.faults.taxonomy import CLASSES, FaultClass, Remedy, suspects_node

MULTI = "multi"
EVIDENCE_LINES = 6
LINE_CHARS_SHOWN = 240
SPEAKER_LINES_MIN = 3
"""Least lines of a rank for its silence to mean something."""
SPEAKERS_MAX = 4096
"""Ranks and hosts that are distinguished."""
FOUND_MAX = 4096
PER_RULE_MAX = 64
"""First lines that are kept of one rule."""
STOPPED_MIN = 2
"""Processes that a launcher kills because one failed, the failed one included."""
WEAK = 46
"""Below this weight the numbers and stacks in the text are considered."""
QUOTED_CHARS_MAX = 1 << 16
"""Characters that are read of a line that quotes a text."""
_ENDS_BADLY = ("launcher-kills", "launcher-summary", "launcher-wraps", "terminate-called", "watchdog-what")
"""Noise rules for lines that only a failed job prints."""
_SIGN = re.compile(
    r"(?i:\b(?:fatal|abort(?:ed|ing)?|killed|panic|fail(?:ed|ures?|s)?|timed out|traceback)\b)"
    r"|\b(?:ERROR|Error|error)s?\b|\b[A-Z]\w{1,60}(?:Error|Exception)\b"
)
_COUNTS = re.compile(
    r"(?i)\b(?:no|0|zero|without(?: any)?)[ -](?:errors?|failures?|failed|exceptions?)\b"
    r"|\b(?:errors?|failures?|failed|exceptions?)\b['\"]?[ =:]{1,3}(?:\d|none|false|\[\])"
)
"""Words like ``errors`` that are a count or a metric."""
UNLISTED_RANK = "a rank not listed"

_SOURCE = re.compile(r"\bFile \"([^\"]{1,300})\", line \d{1,9}(?:, in (\S{1,200}))?")
_SIZE = r"(\d{1,9}(?:\.\d{1,6})?) ?([KMGT])i?B"
_ASKED = re.compile(rf"Tried to allocate {_SIZE}")
_FREE = re.compile(rf"{_SIZE} (?:is )?free")
_TOTAL = re.compile(rf"{_SIZE} total capacity|total capacity of {_SIZE}")
_UNIT = {"K": 1.0, "M": 1024.0, "G": 1024.0**2, "T": 1024.0**3}
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
_SEQ = re.compile(r"SeqNum=(\d{1,18})")
_COMPLETED = re.compile(r"last completed (?:NCCL )?work: (\d{1,18})")
_PEER = re.compile(r"\bpeer ([\w.:-]{1,80}?)(?:<\d|[ ,]|$)")
_RANKS = re.compile(r"\bRank (\d{1,6})\b")


@attrs.frozen
class Diagnosis:
    """The diagnosis of a text.

    Args:
        cls: the class; ``unknown``: no rule gave one.
        detail: the finer distinction.
        role: ``root``, ``collateral`` or ``multi`` (lines of several ranks; ``root_rank`` is the root cause).
        action: the usual action.
        root_rank: rank, task or host at the root; empty: not known.
        node_at_fault: a machine is suspect: that of ``root_rank``, if that is set.
        reason: why, in one sentence.
        evidence: the lines that it rests on, greatest weight first, shortened.
        rule: the rule that gave the class, or another source of it.
        certain: the evidence itself identifies the root; else the role is a guess for lack of other evidence.
        faultless: the class is ``unknown`` because no line of the text resembles a fault.
        missing: for class ``unknown``: evidence that would help.
    """

    cls: FaultClass
    detail: str
    role: str
    action: Remedy
    root_rank: str
    node_at_fault: bool
    reason: str
    evidence: tuple[str, ...]
    rule: str
    certain: bool = True
    faultless: bool = False
    missing: tuple[str, ...] = ()


class TextReader:
    """Reads a text line by line.

    Args:
        extra: a job's custom rules.
    """

    def __init__(self, extra: tuple[Rule, ...] = ()) -> None:
        self._table = table(extra)
        self._found: list[LineMatch] = []
        self._per_rule: dict[tuple[str, str], int] = {}
        self._speakers: dict[str, int] = {}
        self._lines_of: dict[str, int] = {}
        self._series = Series()
        self._progress = ProgressCollector()
        self._places: dict[str, ExceptionOrigin] = {}
        self._stacks = Stacks()
        self._last: deque[str] = deque(maxlen=EVIDENCE_LINES)
        self._bad: deque[str] = deque(maxlen=EVIDENCE_LINES)
        self._at = 0
        self._source_column = -1
        self._section = ""
        self._stopped = 0
        self._signs = False
        self._has_traceback = False

    def add(self, line: str) -> None:
        """Read the next line; a line that quotes a text (JSON's ``\\n``) is read as the lines that it quotes."""
        if "\\n" in line[:QUOTED_CHARS_MAX]:
            for part in line[:QUOTED_CHARS_MAX].split("\\n"):
                self._add(part)
        else:
            self._add(line)

    def _add(self, line: str) -> None:
        self._at += 1
        line = _COLOUR.sub("", line) if "\x1b" in line else line
        if not line.strip():
            return
        self._stacks.add(line)
        if self._is_source(line):
            return
        self._section = speakers.section(line) or ("" if line[:1].strip() else self._section)
        speaker = speakers.speaker(line) or self._section
        if speaker and (speaker in self._speakers or len(self._speakers) < SPEAKERS_MAX):
            self._speakers[speaker] = self._at
            self._lines_of[speaker] = self._lines_of.get(speaker, 0) + 1
        self._series.add(line, speaker)
        self._progress.add(line, speaker)
        self._last.append(line)
        rule, looks_bad = self._table.look(to_bytes(line))
        self._signs |= rule.weight > 0 or rule.name in _ENDS_BADLY if rule is not None else looks_bad and _is_sign(line)
        if rule is None:
            if looks_bad:
                self._bad.append(line)
            return
        rule = rule_at_place(rule, self._places.pop(speaker, None), line)
        key = (rule.name, speaker)
        self._per_rule[key] = self._per_rule.get(key, 0) + 1
        if rule.name in ("agent-stops-siblings", "launcher-kills"):
            self._stopped += 1 if rule.name == "launcher-kills" else STOPPED_MIN
        if rule.weight and self._per_rule[key] <= PER_RULE_MAX and len(self._found) < FOUND_MAX:
            self._found.append(LineMatch(self._at, rule, speaker, speakers.blamed(line), line[:2000], rule.weight))

    def _is_source(self, line: str) -> bool:
        """Whether the line belongs to a traceback: a file with a line number, or a source line."""
        column, self._source_column = self._source_column, -1
        place = _SOURCE.search(line[:600]) if 'File "' in line[:600] else None
        if place is not None:
            self._has_traceback = True
            self._source_column = place.start()
            self._place_of(line, ExceptionOrigin(place[1], place[2] or ""))
            return True
        if column >= 0 and line[column : column + 2].isspace():
            marks = line[column:].strip()
            if marks and not set(marks) <= set("~^"):
                self._source_column = column  # a line of carets may follow
                speaker = speakers.speaker(line)
                if speaker in self._places:
                    self._places[speaker] = attrs.evolve(self._places[speaker], source=marks[:400])
            return True
        return False

    def _place_of(self, line: str, place: ExceptionOrigin) -> None:
        speaker = speakers.speaker(line)
        if speaker in self._places or len(self._places) < SPEAKERS_MAX:
            self._places[speaker] = place

    def strongest(self) -> LineMatch | None:
        """Return the line of greatest weight so far, of equals the earliest; None: no rule matched."""
        return max(adjust_weights(self._found), key=lambda f: (f.weight, -f.number), default=None)

    def result(self) -> Diagnosis:
        """Return the diagnosis of the text so far."""
        found = adjust_weights(self._found)
        best = self.strongest()
        if best is None or best.weight < WEAK:
            shown = self._from_numbers()
            if shown is not None:
                return shown
        if best is None:
            return self._unknown(())
        if best.rule.cls is FaultClass.UNKNOWN:
            if aborted_together(found):
                return self._aborted(found)
            return self._unknown(tuple(f.line for f in found))
        silent = self._silent_peer(best, found)
        if silent is not None:
            return silent
        return self._diagnosis(best, found)

    def _diagnosis(self, best: LineMatch, found: list[LineMatch]) -> Diagnosis:
        rule = best.rule
        action = rule.action or CLASSES[rule.cls].action
        node = rule.node if rule.node is not None else suspects_node(rule.cls)
        role, root = self._role(best, found)
        reason = rule.reason
        if rule.cls is FaultClass.OOM_GPU and _nearly_fits([f.line for f in found if f.rule is rule], self._last):
            action = Remedy.RESTART_PROCESSES
            reason = "memory is fragmented, or slightly too small for a peak: a restart may succeed"
        others = sorted(found, key=lambda f: (-f.weight, f.number))
        lines = dict.fromkeys([best.line, *(f.line for f in others)])
        certain = rule.role != UNSURE
        return Diagnosis(rule.cls, rule.detail, role, action, root, node, reason, _short(lines), rule.name, certain)

    def _role(self, best: LineMatch, found: list[LineMatch]) -> tuple[str, str]:
        if best.rule.role == COLLATERAL:
            return COLLATERAL, next((f.blamed for f in found if f.blamed), "")
        if best.rule.detail == "collective-mismatch":
            numbers = list(dict.fromkeys(_RANKS.findall(best.line)))
            return (MULTI, " and ".join(sorted(numbers, key=int)) + " disagree") if len(numbers) > 1 else (ROOT, "")
        ranks = dict.fromkeys(f.speaker for f in found if f.speaker)
        if best.rule.detail == "ib-link":
            peer = _PEER.search(best.line)
            pair = f"{best.speaker or 'the host that prints it'} or {peer[1] if peer is not None else 'its peer'}"
            return MULTI if len(ranks) > 1 else ROOT, pair
        if best.rule.role == UNSURE and best.rule.cls in (FaultClass.NCCL_TIMEOUT, FaultClass.HANG):
            suspect = self._awaited_rank(found)
            if len(ranks) > 1 or suspect:
                return MULTI, suspect or UNLISTED_RANK
            return ROOT, ""
        passed_on = next((f.blamed for f in found if f.blamed and f.rule.detail == "messenger"), "")
        named = best.blamed or passed_on or best.speaker
        several = len(ranks) > 1 or (named and ranks and named not in ranks)
        victims = [f for f in found if f.rule.role == COLLATERAL]
        crashed = best.rule.detail == "crash" and victims
        others = any(f.speaker and f.speaker != best.speaker for f in victims)
        if several or crashed or others or self._stopped >= STOPPED_MIN:
            return MULTI, named or ("scheduler" if best.rule.detail in ("time-limit", "preempted") else "")
        return ROOT, named

    def _awaited_rank(self, found: list[LineMatch]) -> str:
        """Return the rank that the others waited for: one that a line names, that is behind, or that is silent."""
        waits = [f for f in found if f.rule.cls in (FaultClass.NCCL_TIMEOUT, FaultClass.HANG)]
        blamed = next((f.blamed for f in waits if f.blamed), "")
        if blamed:
            return blamed
        place: dict[str, int] = {}
        for pattern in (_COMPLETED, _SEQ):
            for f in found:
                number = pattern.search(f.line)
                if number is not None and f.speaker and f.speaker not in place:
                    place[f.speaker] = int(number[1])
            if len(set(place.values())) > 1:
                return min(place, key=lambda rank: place[rank])
            place.clear()
        complained = {f.speaker for f in found}
        quiet = [rank for rank in self._speakers if rank not in complained and rank.isdecimal()]
        return quiet[0] if len(quiet) == 1 and complained - {""} else ""

    def _silent_peer(self, best: LineMatch, found: list[LineMatch]) -> Diagnosis | None:
        """Victims report a closed connection, and exactly one rank in the text reports nothing: that rank was ended."""
        if best.rule.role != COLLATERAL or best.rule.detail != "peer-gone":
            return None
        complained = {f.speaker for f in self._found if f.speaker}
        quiet = [
            speaker
            for speaker, lines in self._lines_of.items()
            if speaker not in complained and lines >= SPEAKER_LINES_MIN
        ]
        if len(quiet) != 1 or not complained:
            return None
        reason = "its output ends without an error, then the others lose their connection to it: ended by a signal"
        lines = dict.fromkeys([*(f.line for f in found)])
        return Diagnosis(
            FaultClass.SIGNAL_PREEMPTION,
            "silent",
            MULTI,
            Remedy.RESTART_PROCESSES,
            quiet[0],
            False,
            reason,
            _short(lines),
            "silent-peer",
        )

    def _aborted(self, found: list[LineMatch]) -> Diagnosis:
        return Diagnosis(
            FaultClass.COLLATERAL,
            "sigabrt",
            COLLATERAL,
            CLASSES[FaultClass.COLLATERAL].action,
            "",
            False,
            "several processes aborted without a reported cause: their watchdogs ended them",
            _short(dict.fromkeys(f.line for f in found)),
            "aborted-together",
        )

    def _from_numbers(self) -> Diagnosis | None:
        """Return the diagnosis from stacks, steps and numbers; None: they show no fault."""
        is_hung, waited_for = self._stacks.read()
        last = _short(dict.fromkeys(self._last))
        if is_hung:
            several = len([stack for stack in self._stacks.threads if stack.main]) > 1
            suspect = f"process {waited_for[0]}" if len(waited_for) == 1 else ""
            return Diagnosis(
                FaultClass.HANG,
                "stacks",
                MULTI if several else ROOT,
                Remedy.RESTART_PROCESSES,
                suspect,
                False,
                "stacks of a hung process"
                + ("; the others wait in a collective for the process that is not in it" if suspect else ""),
                last,
                "stacks",
            )
        still, behind = self._progress.read()
        if still:
            role = MULTI if self._progress.speakers > 1 else ROOT
            restart = Remedy.RESTART_PROCESSES
            return Diagnosis(FaultClass.HANG, "no-progress", role, restart, behind, False, still, last, "progress")
        curve = self._series.read()
        if not curve.kind:
            return None
        cls, detail, action = {
            "spike": (FaultClass.NUMERIC, "loss-spike", Remedy.ROLLBACK_SKIP_DATA),
            "not-finite": (FaultClass.NUMERIC, "not-finite", Remedy.ROLLBACK_SKIP_DATA),
            "skipped": (FaultClass.NUMERIC, "skipped", Remedy.ROLLBACK_SKIP_DATA),
            "scale": (FaultClass.NUMERIC, "loss-scale", Remedy.ROLLBACK_SKIP_DATA),
            "overflow": (FaultClass.NUMERIC, "overflow", Remedy.WAIT),
            "recovered": (FaultClass.NUMERIC, "loss-spike", Remedy.WAIT),
            "slower": (FaultClass.HANG, "straggler", Remedy.REPLACE_NODE),
        }[curve.kind]
        role = MULTI if curve.speaker else ROOT
        return Diagnosis(cls, detail, role, action, curve.speaker, curve.kind == "slower", curve.summary, last, "curve")

    def _unknown(self, lines: tuple[str, ...]) -> Diagnosis:
        faultless = self._at > 0 and not self._signs and not self._has_traceback and not self._found
        if faultless:
            reason = "no line of the text resembles a fault"
        else:
            reason = "lines resemble a failure, but none shows its cause" if self._at else "the text is empty"
        return Diagnosis(
            FaultClass.UNKNOWN,
            "",
            MULTI if len({f.speaker for f in self._found if f.speaker}) > 1 else ROOT,
            CLASSES[FaultClass.UNKNOWN].action,
            "",
            False,
            reason,
            _short(dict.fromkeys([*self._bad, *lines, *self._last])),
            "",
            certain=False,
            faultless=faultless,
            missing=() if faultless else self._missing_evidence(),
        )

    def _missing_evidence(self) -> tuple[str, ...]:
        """Return the evidence that usually shows a cause and that the text does not have."""
        details = {f.rule.detail for f in self._found}
        lacks = {
            "the traceback or the error file of the rank that ended first": not self._has_traceback,
            "the exit code or the signal of the process": not details & {"exit", "sigabrt", "abort"},
            "the output of the other ranks": len(self._speakers) < 2,
            "the kernel log of the node (dmesg)": True,
            "the log of the scheduler": True,
        }
        return tuple(what for what, lacking in lacks.items() if lacking)


def _is_sign(line: str) -> bool:
    """Whether a line that matches no rule resembles a failure, not a count of failures or an option."""
    return _SIGN.search(_COUNTS.sub(" ", line[:2000])) is not None


def classify_text(text: str, extra: tuple[Rule, ...] = ()) -> Diagnosis:
    """Diagnose a complete text.

    Args:
        text: the text, from one rank or from many.
        extra: a job's custom rules.
    """
    reader = TextReader(extra)
    for line in text.splitlines():
        reader.add(line)
    return reader.result()


def _short(lines: dict[str, None]) -> tuple[str, ...]:
    return tuple(line.strip()[:LINE_CHARS_SHOWN] for line in list(lines)[:EVIDENCE_LINES])


def _nearly_fits(lines: list[str], after: deque[str]) -> bool:
    """Whether a device had enough free memory, or lacked at most 1/200 of its total: a restart may then succeed."""
    text = " ".join([*lines, *after])
    asked, free, total = (_kib(pattern, text) for pattern in (_ASKED, _FREE, _TOTAL))
    if asked is None or free is None or total is None:
        return False
    return (free >= asked and free >= total / 10) or 0 <= asked - free <= total / 200


def _kib(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    if found is None:
        return None
    number, unit = (group for group in found.groups() if group is not None)
    return float(number) * _UNIT[unit]
