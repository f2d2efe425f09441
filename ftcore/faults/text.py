"""A whole text -> one diagnosis: what it was, who began it, what to do.

The text may be of one rank or of many, of one moment or of days. Each line is read by the table; the loudest line is
the root (``rule.py``), the earliest among equals. What a line says of another rank counts for that rank. Where nothing
is louder than a signal, what the numbers and the stacks in the text show is asked as well.

House rules: lines of a traceback that show source are no evidence, whatever words they hold. A class is only given when
a rule gave it: else it is ``unknown``, with the lines that looked most like it. Memory is bounded, so a text may be fed
line by line for as long as it lasts.
"""

import re
from collections import deque

import attrs

from ftcore.faults import speakers
from ftcore.faults.context import Found, Place, aborted_together, at_place, weighed
from ftcore.faults.pattern import to_bytes
from ftcore.faults.progress import Progress
from ftcore.faults.rule import COLLATERAL, ROOT, UNSURE, Rule
from ftcore.faults.series import Series
from ftcore.faults.stacks import Stacks
from ftcore.faults.table import table
from ftcore.faults.taxonomy import CLASSES, Action, FaultClass, suspects_node

MULTI = "multi"
EVIDENCE_LINES = 6
LINE_CHARS_SHOWN = 240
SPOKE_LINES = 3
"""Who spoke less than this often need not be missed when it falls silent."""
VOICES_MAX = 4096
"""Ranks and hosts that are told apart."""
FOUND_MAX = 4096
PER_RULE_MAX = 64
"""Lines kept of one rule; the first ones."""
STOPPED_MIN = 2
"""Processes that a launcher kills because one failed: it counts the failed one among them."""
WEAK = 46
"""Below this weight the numbers and stacks of the text are asked."""
QUOTED_CHARS_MAX = 1 << 16
"""Of a line that quotes a text; the rest of a longer one is not read."""
_ENDS_BADLY = ("launcher-kills", "launcher-summary", "launcher-wraps", "terminate-called", "watchdog-what")
"""Rules of noise that only a job that failed prints."""
_SIGN = re.compile(
    r"(?i:\b(?:fatal|abort(?:ed|ing)?|killed|panic|fail(?:ed|ures?|s)?|timed out|traceback)\b)"
    r"|\b(?:ERROR|Error|error)s?\b|\b[A-Z]\w{1,60}(?:Error|Exception)\b"
)
_COUNTS = re.compile(
    r"(?i)\b(?:no|0|zero|without(?: any)?)[ -](?:errors?|failures?|failed|exceptions?)\b"
    r"|\b(?:errors?|failures?|failed|exceptions?)\b['\"]?[ =:]{1,3}(?:\d|none|false|\[\])"
)
"""Words of failures that are a count or a metric."""
NOBODY_LISTED = "a rank not listed"

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
    """What a text means.

    Args:
        cls: the class; ``unknown`` if no rule gave one.
        detail: the finer distinction.
        role: ``root``, ``collateral`` or ``multi`` (several ranks speak, ``root_rank`` names the one that began).
        action: what is usually done.
        root_rank: rank, task or host that began; empty if the text does not tell.
        node_at_fault: there is reason to suspect a machine: that of ``root_rank``, if that names one.
        reason: why, one sentence.
        evidence: the lines that it rests on, the weightiest first, shortened.
        rule: the rule that gave the class, or how else it was found.
        certain: the evidence itself says who began; else the role is what is left when nobody else speaks.
        faultless: the class is ``unknown`` because nothing in the text looks like a fault.
        missing: what would tell more; only where the class is ``unknown``.
    """

    cls: FaultClass
    detail: str
    role: str
    action: Action
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
        extra: a job's own rules.
    """

    def __init__(self, extra: tuple[Rule, ...] = ()) -> None:
        self._table = table(extra)
        self._found: list[Found] = []
        self._per_rule: dict[tuple[str, str], int] = {}
        self._voices: dict[str, int] = {}
        self._lines_of: dict[str, int] = {}
        self._series = Series()
        self._progress = Progress()
        self._places: dict[str, Place] = {}
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
        """Take the next line; one that quotes a text (JSON's ``\\n``) is taken as the lines it quotes."""
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
        who = speakers.speaker(line) or self._section
        if who and (who in self._voices or len(self._voices) < VOICES_MAX):
            self._voices[who] = self._at
            self._lines_of[who] = self._lines_of.get(who, 0) + 1
        self._series.add(line, who)
        self._progress.add(line, who)
        self._last.append(line)
        rule, looks_bad = self._table.look(to_bytes(line))
        self._signs |= rule.weight > 0 or rule.name in _ENDS_BADLY if rule is not None else looks_bad and _is_sign(line)
        if rule is None:
            if looks_bad:
                self._bad.append(line)
            return
        rule = at_place(rule, self._places.pop(who, None), line)
        key = (rule.name, who)
        self._per_rule[key] = self._per_rule.get(key, 0) + 1
        if rule.name in ("agent-stops-siblings", "launcher-kills"):
            self._stopped += 1 if rule.name == "launcher-kills" else STOPPED_MIN
        if rule.weight and self._per_rule[key] <= PER_RULE_MAX and len(self._found) < FOUND_MAX:
            self._found.append(Found(self._at, rule, who, speakers.named(line), line[:2000], rule.weight))

    def _is_source(self, line: str) -> bool:
        """Whether the line is a traceback's: where in which file, or the source that stands there."""
        column, self._source_column = self._source_column, -1
        place = _SOURCE.search(line[:600]) if 'File "' in line[:600] else None
        if place is not None:
            self._has_traceback = True
            self._source_column = place.start()
            self._place_of(line, Place(place[1], place[2] or ""))
            return True
        if column >= 0 and line[column : column + 2].isspace():
            marks = line[column:].strip()
            if marks and not set(marks) <= set("~^"):
                self._source_column = column  # below it may stand the line that marks the place in it
                who = speakers.speaker(line)
                if who in self._places:
                    self._places[who] = attrs.evolve(self._places[who], source=marks[:400])
            return True
        return False

    def _place_of(self, line: str, place: Place) -> None:
        who = speakers.speaker(line)
        if who in self._places or len(self._places) < VOICES_MAX:
            self._places[who] = place

    def loudest(self) -> Found | None:
        """The line that speaks loudest so far, the earliest among equals; None if no rule read any."""
        return max(weighed(self._found), key=lambda f: (f.weight, -f.at), default=None)

    def result(self) -> Diagnosis:
        """What the text so far means."""
        found = weighed(self._found)
        best = self.loudest()
        if best is None or best.weight < WEAK:
            shown = self._shown()
            if shown is not None:
                return shown
        if best is None:
            return self._unknown(())
        if best.rule.cls is FaultClass.UNKNOWN:
            if aborted_together(found):
                return self._taken_down(found)
            return self._unknown(tuple(f.line for f in found))
        silent = self._silent(best, found)
        if silent is not None:
            return silent
        return self._diagnosis(best, found)

    def _diagnosis(self, best: Found, found: list[Found]) -> Diagnosis:
        rule = best.rule
        action = rule.action or CLASSES[rule.cls].action
        node = rule.node if rule.node is not None else suspects_node(rule.cls)
        role, who = self._role(best, found)
        reason = rule.reason
        if rule.cls is FaultClass.OOM_GPU and _nearly_fits([f.line for f in found if f.rule is rule], self._last):
            action = Action.RESTART_PROCESSES
            reason = "fragmentation, or a peak that nearly fits: a restart may well go through"
        others = sorted(found, key=lambda f: (-f.weight, f.at))
        lines = dict.fromkeys([best.line, *(f.line for f in others)])
        certain = rule.role != UNSURE
        return Diagnosis(rule.cls, rule.detail, role, action, who, node, reason, _short(lines), rule.name, certain)

    def _role(self, best: Found, found: list[Found]) -> tuple[str, str]:
        if best.rule.role == COLLATERAL:
            return COLLATERAL, next((f.names for f in found if f.names), "")
        if best.rule.detail == "collective-mismatch":
            ranks = list(dict.fromkeys(_RANKS.findall(best.line)))
            return (MULTI, " and ".join(sorted(ranks, key=int)) + " disagree") if len(ranks) > 1 else (ROOT, "")
        who = dict.fromkeys(f.who for f in found if f.who)
        if best.rule.detail == "ib-link":
            peer = _PEER.search(best.line)
            pair = f"{best.who or 'the host that prints it'} or {peer[1] if peer is not None else 'its peer'}"
            return MULTI if len(who) > 1 else ROOT, pair
        if best.rule.role == UNSURE and best.rule.cls in (FaultClass.NCCL_TIMEOUT, FaultClass.HANG):
            suspect = self._missing(found)
            if len(who) > 1 or suspect:
                return MULTI, suspect or NOBODY_LISTED
            return ROOT, ""
        passed_on = next((f.names for f in found if f.names and f.rule.detail == "messenger"), "")
        named = best.names or passed_on or best.who
        several = len(who) > 1 or (named and who and named not in who)
        victims = [f for f in found if f.rule.role == COLLATERAL]
        crashed = best.rule.detail == "crash" and victims
        if several or crashed or self._stopped >= STOPPED_MIN or any(f.who and f.who != best.who for f in victims):
            return MULTI, named or ("scheduler" if best.rule.detail in ("time-limit", "preempted") else "")
        return ROOT, named

    def _missing(self, found: list[Found]) -> str:
        """Of ranks that waited in vain, whom they waited for: one that is named, that is behind, or that is silent."""
        waits = [f for f in found if f.rule.cls in (FaultClass.NCCL_TIMEOUT, FaultClass.HANG)]
        blamed = next((f.names for f in waits if f.names), "")
        if blamed:
            return blamed
        place: dict[str, int] = {}
        for pattern in (_COMPLETED, _SEQ):
            for f in found:
                number = pattern.search(f.line)
                if number is not None and f.who and f.who not in place:
                    place[f.who] = int(number[1])
            if len(set(place.values())) > 1:
                return min(place, key=lambda rank: place[rank])
            place.clear()
        complained = {f.who for f in found}
        quiet = [rank for rank in self._voices if rank not in complained and rank.isdecimal()]
        return quiet[0] if len(quiet) == 1 and complained - {""} else ""

    def _silent(self, best: Found, found: list[Found]) -> Diagnosis | None:
        """Victims tell of a peer that closed; the one rank in the text that tells of nothing ended without a word."""
        if best.rule.role != COLLATERAL or best.rule.detail != "peer-gone":
            return None
        complained = {f.who for f in self._found if f.who}
        quiet = [who for who, lines in self._lines_of.items() if who not in complained and lines >= SPOKE_LINES]
        if len(quiet) != 1 or not complained:
            return None
        reason = "its output ends without a word, then the others lose their connection to it: ended from outside"
        lines = dict.fromkeys([*(f.line for f in found)])
        return Diagnosis(
            FaultClass.SIGNAL_PREEMPTION,
            "silent",
            MULTI,
            Action.RESTART_PROCESSES,
            quiet[0],
            False,
            reason,
            _short(lines),
            "silent-peer",
        )

    def _taken_down(self, found: list[Found]) -> Diagnosis:
        return Diagnosis(
            FaultClass.COLLATERAL,
            "sigabrt",
            COLLATERAL,
            CLASSES[FaultClass.COLLATERAL].action,
            "",
            False,
            "several processes aborted and none says why: their watchdogs took them down",
            _short(dict.fromkeys(f.line for f in found)),
            "aborted-together",
        )

    def _shown(self) -> Diagnosis | None:
        """What stacks and numbers show by themselves."""
        is_hung, waited_for = self._stacks.read()
        last = _short(dict.fromkeys(self._last))
        if is_hung:
            several = len([stack for stack in self._stacks.threads if stack.main]) > 1
            who = f"process {waited_for[0]}" if len(waited_for) == 1 else ""
            return Diagnosis(
                FaultClass.HANG,
                "stacks",
                MULTI if several else ROOT,
                Action.RESTART_PROCESSES,
                who,
                False,
                "stacks of a process that stands still"
                + ("; the others wait for the one that is not in the collective" if who else ""),
                last,
                "stacks",
            )
        still, behind = self._progress.read()
        if still:
            role = MULTI if self._progress.voices > 1 else ROOT
            restart = Action.RESTART_PROCESSES
            return Diagnosis(FaultClass.HANG, "no-progress", role, restart, behind, False, still, last, "progress")
        curve = self._series.read()
        if not curve.kind:
            return None
        cls, detail, action = {
            "spike": (FaultClass.NUMERIC, "loss-spike", Action.ROLLBACK_SKIP_DATA),
            "not-finite": (FaultClass.NUMERIC, "not-finite", Action.ROLLBACK_SKIP_DATA),
            "skipped": (FaultClass.NUMERIC, "skipped", Action.ROLLBACK_SKIP_DATA),
            "scale": (FaultClass.NUMERIC, "loss-scale", Action.ROLLBACK_SKIP_DATA),
            "overflow": (FaultClass.NUMERIC, "overflow", Action.WAIT),
            "recovered": (FaultClass.NUMERIC, "loss-spike", Action.WAIT),
            "slower": (FaultClass.HANG, "straggler", Action.REPLACE_NODE),
        }[curve.kind]
        role = MULTI if curve.who else ROOT
        return Diagnosis(cls, detail, role, action, curve.who, curve.kind == "slower", curve.told, last, "curve")

    def _unknown(self, lines: tuple[str, ...]) -> Diagnosis:
        faultless = self._at > 0 and not self._signs and not self._has_traceback and not self._found
        if faultless:
            reason = "no line of the text looks like a fault"
        else:
            reason = "lines look like a failure, but none says what the cause is" if self._at else "there is no text"
        return Diagnosis(
            FaultClass.UNKNOWN,
            "",
            MULTI if len({f.who for f in self._found if f.who}) > 1 else ROOT,
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
        """What the text does not have and usually names a cause."""
        details = {f.rule.detail for f in self._found}
        lacks = {
            "the traceback or the error file of the rank that ended first": not self._has_traceback,
            "the exit code or the signal of the process": not details & {"exit", "sigabrt", "abort"},
            "the output of the other ranks": len(self._voices) < 2,
            "the kernel log of the node (dmesg)": True,
            "the log of the scheduler": True,
        }
        return tuple(what for what, lacking in lacks.items() if lacking)


def _is_sign(line: str) -> bool:
    """Whether a line that no rule knows looks like a failure, not like a count of them or an option."""
    return _SIGN.search(_COUNTS.sub(" ", line[:2000])) is not None


def classify_text(text: str, extra: tuple[Rule, ...] = ()) -> Diagnosis:
    """Read a whole text.

    Args:
        text: what a person or a scanner saw; of one rank or of many.
        extra: a job's own rules.
    """
    reader = TextReader(extra)
    for line in text.splitlines():
        reader.add(line)
    return reader.result()


def _short(lines: dict[str, None]) -> tuple[str, ...]:
    return tuple(line.strip()[:LINE_CHARS_SHOWN] for line in list(lines)[:EVIDENCE_LINES])


def _nearly_fits(lines: list[str], after: deque[str]) -> bool:
    """Whether a device had plenty of memory free or lacked a two-hundredth: a restart may then well go through."""
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
