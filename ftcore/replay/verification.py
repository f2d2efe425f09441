"""Verification: decide again from the recorded facts, and compare with the recorded decisions.

The log is split into groups: a fact and its decisions. The production ``turn`` gets the fact and the state before it,
and must return the recorded group, equal in every field. While groups are equal, the state that ``turn`` returns *is*
the folded state, so verification costs one turn per fact and no second fold. After a mismatch the state is rebuilt from
the recorded events. So one wrong decision is reported once, and later ones are judged by the recorded state.

Groups that are only folded, not decided again:
- a group with ``job.parked``: its fact could not be folded, so its events are not decisions of the rules;
- a group with an event type that this ftcore does not know: another release made it.
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
"""Mismatches reported; later ones usually follow from the first."""

KEEP_EVERY = 10_000
"""Events between copies of the state: limits the cost of rebuilding after a mismatch."""

_ABSENT = "(absent)"


@attrs.frozen(kw_only=True)
class Mismatch:
    """A difference between the recorded events and those decided again.

    Args:
        seq: its position in the log.
        expected: the event decided again; None if no further decision was expected.
        found: the recorded event; None if the log lacks the decision.
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
    """The result of a verification.

    Args:
        events: events read.
        groups: groups that were decided again and compared.
        skipped: groups that were only folded.
        mismatches: at most ``MISMATCHES_MAX``, in order.
        complete: the whole log was compared; false after ``MISMATCHES_MAX`` or an event that cannot be folded.
        state: the state after the last recorded event.
        digest: the digest of that state.
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
        """Whether there is no mismatch."""
        return not self.mismatches


class Verifier:
    """A reader that verifies a log; call ``report`` after the last event."""

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

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Those found so far; the last group is compared when the next one begins."""
        return tuple(self._mismatches)

    def report(self, *, cut: bool = False) -> VerifyReport:
        """The result; no events may be fed after it.

        Args:
            cut: the last group may be incomplete; decisions missing at its end are no mismatch.
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
        """Whether a decision belongs to the current group; ``job.parked`` may be recorded without its fact."""
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
            text = f"decision {group[0].type} has no fact before it"
            self._mismatches.append(Mismatch(seq=group[0].seq, expected=None, found=group[0], differences=(text,)))
            self._fold(group)
            return
        try:
            made = turn(self._state, group[0])
        except FtcoreError:
            raise
        except Exception as error:
            text = f"deciding again after this {group[0].type} failed: {type(error).__name__}: {error}"
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
        until: the last seq to verify; None for all.

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
    """Yield the first difference between a group decided again and the recorded one; ``cut`` as for ``report``."""
    for expected, found in zip(made, group, strict=False):
        if expected != found:
            yield Mismatch(seq=found.seq, expected=expected, found=found, differences=tuple(_compare(expected, found)))
            return
    if len(group) > len(made):
        extra = group[len(made)]
        text = f"extra decision {extra.type}: no further decision is expected here"
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
    # The codec cannot produce objects that are unequal but equal as JSON; report them rather than nothing.
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
