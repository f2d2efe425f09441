"""Verification: decide again from the recorded facts, and compare with the recorded decisions.

The log is cut into groups: a fact and the decisions behind it. The fact is given to the production ``turn`` on the
state before it, and the group that comes back must equal the recorded one in every field. As long as it does, the
re-made state *is* the folded state, so verifying costs one turn per fact and no second fold. On a mismatch the re-made
state is thrown away and rebuilt from the recorded events, so that one wrong decision is reported once and everything
behind it is judged by what was recorded.

Not decided again, only folded:
- a group with ``job.parked``: its fact could not be folded then, and what followed was no decision of the rules;
- a group with an event that this ftcore does not know: it was made by another one.
"""

import copy
from collections.abc import AsyncIterable, Iterable, Iterator
from typing import Any

import attrs
import msgspec

from ftcore.engine.decide import turn
from ftcore.errors import FtcoreError, LogCorrupt
from ftcore.events.codec import payload_to_json
from ftcore.events.envelope import Event, Unknown
from ftcore.events.job import JobParked, LogSalvaged
from ftcore.events.registry import Kind
from ftcore.replay.reading import fold_recorded, read, read_async
from ftcore.states.model import JobState, digest

MISMATCHES_MAX = 20
"""Mismatches reported; whoever has that many looks at the first."""

KEEP_EVERY = 10_000
"""A copy of the state is kept every so many events: what a mismatch costs to rebuild is bounded by it."""

_ABSENT = "(absent)"


@attrs.frozen(kw_only=True)
class Mismatch:
    """A place where deciding again gave something else.

    Args:
        seq: where, in the log.
        expected: the event that was decided anew; None if nothing more should have been decided.
        found: the event as recorded; None if the log has no such decision.
        differences: one line per field, as ``data.wait_s: expected 1.0, found 2.0``.
    """

    seq: int
    expected: Event | None
    found: Event | None
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return f"event {self.seq}: {'; '.join(self.differences)}"


@attrs.frozen(kw_only=True)
class VerifyReport:
    """What verification found.

    Args:
        events: events read.
        groups: groups that were decided again and compared.
        skipped: groups that were only folded.
        mismatches: at most ``MISMATCHES_MAX``, in order.
        complete: everything was compared; false after so many mismatches, or an event that cannot be folded.
        state: the state after the last event, as recorded.
        digest: its digest.
    """

    events: int
    groups: int
    skipped: int
    mismatches: tuple[Mismatch, ...]
    complete: bool
    state: JobState
    digest: str

    @property
    def ok(self) -> bool:
        """Whether every decision was made again as recorded."""
        return not self.mismatches


class Verifier:
    """A reader that verifies; ``report()`` once everything was fed."""

    def __init__(self) -> None:
        self._state = JobState()
        self._kept = JobState()
        self._since: list[Event] = []
        self._group: list[Event] = []
        self._events = self._groups = self._skipped = 0
        self._mismatches: list[Mismatch] = []
        self._broken = False

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if event.kind is Kind.FACT or (type(event.data) is JobParked and not self._answers(event)):
            self._close()
        self._group.append(event)

    def report(self, *, cut: bool = False) -> VerifyReport:
        """What was found.

        Args:
            cut: the reading ended at a place that may lie inside a group; what is missing at its end is no mismatch.
        """
        self._close(cut=cut)
        return VerifyReport(
            events=self._events,
            groups=self._groups,
            skipped=self._skipped,
            mismatches=tuple(self._mismatches),
            complete=not self._full and not self._broken,
            state=self._state,
            digest=digest(self._state),
        )

    def _answers(self, event: Event) -> bool:
        """Whether a decision belongs to the group that is being read; ``job.parked`` may stand without its fact."""
        return bool(self._group) and event.cause == self._group[0].seq

    @property
    def _full(self) -> bool:
        return len(self._mismatches) >= MISMATCHES_MAX

    def _close(self, *, cut: bool = False) -> None:
        group = self._group
        if not group:
            return
        self._group = []
        self._since += group
        self._events += len(group)
        if self._broken:
            return
        if self._full or any(type(event.data) in (JobParked, LogSalvaged, Unknown) for event in group):
            self._skipped += 1
            self._fold(group)
        else:
            self._groups += 1
            self._judge(group, cut)
        if len(self._since) >= KEEP_EVERY and not self._broken:
            self._kept, self._since = copy.deepcopy(self._state), []

    def _judge(self, group: list[Event], cut: bool) -> None:
        if group[0].kind is Kind.DECISION:
            text = f"decision {group[0].type} stands without a fact that it answers"
            self._mismatches.append(Mismatch(seq=group[0].seq, expected=None, found=group[0], differences=(text,)))
            self._fold(group)
            return
        try:
            made = turn(self._state, group[0])
        except FtcoreError:
            raise
        except Exception as error:
            text = f"deciding again from this {group[0].type} failed: {type(error).__name__}: {error}"
            self._mismatches.append(Mismatch(seq=group[0].seq, expected=None, found=None, differences=(text,)))
        else:
            if made == group:
                return
            for mismatch in _first_difference(made, group, cut):
                self._mismatches.append(mismatch)
        self._state = copy.deepcopy(self._kept)
        self._fold(self._since)

    def _fold(self, events: list[Event]) -> None:
        for event in events:
            try:
                fold_recorded(self._state, event)
            except LogCorrupt as error:
                self._broken = True
                self._mismatches.append(Mismatch(seq=event.seq, expected=None, found=event, differences=(str(error),)))
                return


def verify(events: Iterable[Event], *, until: int | None = None) -> VerifyReport:
    """Decide again from the recorded facts and compare.

    Args:
        events: a log's events from the first, in order.
        until: the last seq to look at; all if None.

    Raises:
        UnknownEvent: a type or version that this ftcore does not know, and that may not be ignored.
    """
    verifier = Verifier()
    read(events, verifier, until=until)
    return verifier.report(cut=until is not None)


async def verify_async(events: AsyncIterable[Event], *, until: int | None = None) -> VerifyReport:
    """Decide again from the recorded facts and compare; see ``verify``."""
    verifier = Verifier()
    await read_async(events, verifier, until=until)
    return verifier.report(cut=until is not None)


def _first_difference(made: list[Event], group: list[Event], cut: bool) -> Iterator[Mismatch]:
    """The first place at which a re-made group differs; none if the recorded one was only cut short."""
    for expected, found in zip(made, group, strict=False):
        if expected != found:
            yield Mismatch(seq=found.seq, expected=expected, found=found, differences=tuple(_compare(expected, found)))
            return
    if len(group) > len(made):
        extra = group[len(made)]
        text = f"extra decision {extra.type}: nothing more is decided here"
        yield Mismatch(seq=extra.seq, expected=None, found=extra, differences=(text,))
    elif not cut:
        missing = made[len(group)]
        text = f"missing decision {missing.type} {_shown(_fields(missing)['data'])}"
        yield Mismatch(seq=missing.seq, expected=missing, found=None, differences=(text,))


def _fields(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.structs.asdict(event)
    return {**msgspec.to_builtins({**fields, "data": None}), "data": payload_to_json(event.data)}


def _compare(expected: Event, found: Event) -> Iterator[str]:
    if expected.type != found.type:
        yield f"type: expected {expected.type} {_shown(_fields(expected)['data'])}, found {found.type}"
        return
    lines = list(_differences(_fields(expected), _fields(found), ""))
    # Equal as JSON yet not equal as objects cannot come out of the codec; say so rather than nothing.
    yield from lines or ["the events differ in their Python types only"]


def _differences(expected: Any, found: Any, path: str) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*expected, *found)):
            inner = f"{path}.{key}" if path else str(key)
            yield from _differences(expected.get(key, _ABSENT), found.get(key, _ABSENT), inner)
    elif expected != found:
        yield f"{path}: expected {_shown(expected)}, found {_shown(found)}"


def _shown(value: Any) -> str:
    text = value if value == _ABSENT else msgspec.json.encode(value).decode()
    return text if len(text) <= 300 else f"{text[:300]}..."
