"""The first event at which a property of a log fails.

Binary search is right only for properties that stay broken once they are; most do not. So the log is read once, and
every change between "holds" and "fails" is known. An expression of the state alone counts once its whole group is
folded: between a fact and its decisions the state is on its way. An expression that reads the event counts at every
event.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from ftcore.errors import UnknownEvent
from ftcore.events.envelope import Event
from ftcore.events.registry import Kind
from ftcore.replay.checks import CheckProblem, LogCheck
from ftcore.replay.expressions import StateExpression
from ftcore.replay.reading import fold_recorded
from ftcore.states.model import JobState

TURNS_MAX: Final = 50
"""Changes that are kept; all are counted."""


@attrs.frozen(kw_only=True)
class Turning:
    """A change of the property.

    Args:
        seq: the event since which it is so; one after the last event if an event is missing at the end.
        holds: whether the property holds since then.
        why: what is wrong, if a check says it.
    """

    seq: int
    holds: bool
    why: str = ""


@attrs.define
class Bisection:
    """The result.

    Attributes:
        events: events that were judged.
        turnings: the first changes; the first entry is the first value.
        count: number of all changes, the first value included; of a check the number of failures.
        unknown: why later events were not judged; empty: all were.
    """

    events: int = 0
    turnings: list[Turning] = attrs.field(factory=list)
    count: int = 0
    unknown: str = ""

    @property
    def first_failure(self) -> Turning | None:
        """The first event at which the property fails; None: it never does."""
        return next((turning for turning in self.turnings if not turning.holds), None)

    @property
    def holds_again(self) -> Turning | None:
        """The first event after that at which it holds again."""
        first = self.first_failure
        return next((each for each in self.turnings if first and each.seq > first.seq and each.holds), None)

    def add(self, seq: int, holds: bool, why: str = "") -> None:
        """Note the value since an event."""
        if self.turnings and self._last == holds:
            return
        self._last = holds
        self.count += 1
        if len(self.turnings) < TURNS_MAX:
            self.turnings.append(Turning(seq=seq, holds=holds, why=why))

    _last: bool = True


class ExpressionBisector:
    """A reader that evaluates an expression after every group; one that reads the event, after every event.

    Args:
        expression: the property.

    Attributes:
        result: what was found so far.
    """

    def __init__(self, expression: StateExpression) -> None:
        self.result = Bisection()
        self._expression = expression
        self._state = JobState()
        self._since: tuple[int, bool] | None = None
        self._group = 0

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if self.result.unknown:
            return
        if event.kind is Kind.FACT:
            self._settle()
        try:
            fold_recorded(self._state, event)
        except UnknownEvent as error:
            self.result.unknown = str(error)
            return
        holds = bool(self._value(event))
        if self._expression.of_event:
            self.result.events += 1
            self.result.add(event.seq, holds)
            return
        self._group += 1
        if self._since is None or self._since[1] is not holds:
            self._since = (event.seq, holds)

    def close(self, *, cut: bool = False) -> None:
        """Judge the last group.

        Args:
            cut: the log could not be read to its end, so that its last group may be incomplete; it is not judged.
        """
        if not cut and not self.result.unknown:
            self._settle()

    def _settle(self) -> None:
        self.result.events += self._group
        self._group = 0
        if self._since is not None:
            self.result.add(*self._since)
            self._since = (self._state.seq + 1, self._since[1])

    def _value(self, event: Event) -> Any:
        return self._expression.value(self._state, event)


class CheckBisector:
    """A reader that runs a named check; the result has every event at which it fails, and no returns.

    Args:
        check: the check.

    Attributes:
        result: what was found so far.
    """

    def __init__(self, check: LogCheck) -> None:
        self.result = Bisection()
        self._check = check

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if self.result.unknown:
            return
        try:
            self._note(self._check.feed(event))
        except UnknownEvent as error:
            self.result.unknown = str(error)
            return
        self.result.events += 1

    def close(self, *, cut: bool = False) -> None:
        """Judge what the end of the log shows; ``cut`` as for ``LogCheck.close``."""
        if self.result.unknown:
            return
        try:
            self._note(self._check.close(cut=cut))
        except UnknownEvent as error:
            self.result.unknown = str(error)
        else:
            self.result.unknown = self._check.stopped

    def _note(self, problems: Sequence[CheckProblem]) -> None:
        for problem in problems:
            self.result.count += 1
            if len(self.result.turnings) < TURNS_MAX:
                self.result.turnings.append(Turning(seq=problem.seq, holds=False, why=problem.why))
