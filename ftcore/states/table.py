"""Machines as rows of data: declaration, the checks made at import, and stepping.

A machine is a table. A row says: *in this state, this trigger leads to that state (if the guard holds)*. A trigger is
the name of an event type, with a qualifier where one type means different things (``action.ordered/stop_workers``);
machines that live outside the log (agent, master) have triggers of their own.

House rules:
- whatever may follow whatever is said by a row, nowhere else;
- each pair of state and trigger is exactly one of three: a row, *ignored* with a reason, or an *anomaly*, which the
  fold records and which never changes the state;
- a definition that contradicts itself does not import.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeAlias

import attrs

Guard: TypeAlias = Callable[[Any], bool]


@attrs.frozen
class Row:
    """One permitted transition.

    Args:
        trigger: what happens.
        source: the state in which it is accepted.
        target: the state that follows.
        guard: name of a guard of the machine that must hold, or empty.
    """

    trigger: str
    source: StrEnum
    target: StrEnum
    guard: str = ""


def rows(trigger: str, sources: Sequence[StrEnum], target: StrEnum) -> tuple[Row, ...]:
    """The same transition from several states."""
    return tuple(Row(trigger, source, target) for source in sources)


@attrs.frozen
class Ignored:
    """A trigger that leaves some states as they are, on purpose.

    Args:
        trigger: what happens.
        sources: in which states it means nothing.
        reason: why it means nothing there.
    """

    trigger: str
    sources: tuple[StrEnum, ...]
    reason: str


class DefinitionError(ValueError):
    """A machine's table contradicts itself; the message names machine, state and trigger."""


class Machine:
    """A checked table.

    Args:
        name: what the machine describes, one word.
        doc: one sentence.
        states: the enumeration of its states, each member with a docstring-like value.
        initial: where it starts.
        finals: states without a way out, on purpose.
        table: the rows.
        ignored: what means nothing where.
        guards: functions of the fold's context, by name.

    Raises:
        DefinitionError: duplicate rows, a state that cannot be reached, a trap, an unknown or unused guard, an ignored
            pair that is also a row.
    """

    def __init__(
        self,
        name: str,
        doc: str,
        states: type[StrEnum],
        initial: StrEnum,
        finals: Sequence[StrEnum],
        table: Sequence[Row],
        ignored: Sequence[Ignored] = (),
        guards: Mapping[str, Guard] | None = None,
    ) -> None:
        self.name: Final = name
        self.doc: Final = doc
        self.states: Final = states
        self.initial: Final = initial
        self.finals: Final = frozenset(finals)
        self.rows: Final = tuple(table)
        self.ignored: Final = tuple(ignored)
        self.guards: Final = dict(guards or {})
        self.triggers: Final = tuple(sorted({row.trigger for row in table} | {entry.trigger for entry in ignored}))
        self._next: dict[tuple[StrEnum, str], tuple[Row, ...]] = {}
        for row in self.rows:
            self._next[row.source, row.trigger] = (*self._next.get((row.source, row.trigger), ()), row)
        self._reasons = {(state, entry.trigger): entry.reason for entry in ignored for state in entry.sources}
        self._check()

    def step(self, state: StrEnum, trigger: str, context: Any = None) -> StrEnum | None:
        """The state that follows.

        Args:
            state: the present state.
            trigger: what happens.
            context: what the guards look at.

        Returns:
            The next state; the same one if the pair is ignored; None if it is an anomaly.
        """
        for row in self._next.get((state, trigger), ()):
            if not row.guard or self.guards[row.guard](context):
                return row.target
        return state if (state, trigger) in self._reasons else None

    def reason_ignored(self, state: StrEnum, trigger: str) -> str | None:
        """Why the pair is ignored; None if it is not."""
        return self._reasons.get((state, trigger))

    def candidates(self, state: StrEnum, trigger: str) -> tuple[Row, ...]:
        """The rows of the pair, in the order in which their guards are asked."""
        return self._next.get((state, trigger), ())

    def _fail(self, text: str) -> None:
        raise DefinitionError(f"machine {self.name}: {text}")

    def _check(self) -> None:
        self._check_rows()
        self._check_ignored()
        self._check_graph()

    def _check_rows(self) -> None:
        for (state, trigger), found in self._next.items():
            guards = [row.guard for row in found]
            if len(set(guards)) != len(guards):
                self._fail(f"{trigger} in {state} is declared twice")
            if "" in guards[:-1]:
                self._fail(f"{trigger} in {state}: a row without a guard hides the rows behind it")
        named = {row.guard for row in self.rows if row.guard}
        if named != set(self.guards):
            self._fail(f"guards named and guards given differ: {sorted(named ^ set(self.guards))}")
        for row in self.rows:
            if row.source in self.finals and row.target is not row.source and not self._reopens(row):
                self._fail(f"{row.source} is final but {row.trigger} leads out of it")

    def _reopens(self, row: Row) -> bool:
        """A final state may be left only back to the initial one: a new run of the same thing."""
        return row.target is self.initial

    def _check_ignored(self) -> None:
        seen: set[tuple[StrEnum, str]] = set()
        for entry in self.ignored:
            if not entry.reason:
                self._fail(f"{entry.trigger} is ignored without a reason")
            for state in entry.sources:
                if (state, entry.trigger) in seen:
                    self._fail(f"{entry.trigger} in {state} is ignored twice")
                if (state, entry.trigger) in self._next:
                    self._fail(f"{entry.trigger} in {state} is both a row and ignored")
                seen.add((state, entry.trigger))

    def _check_graph(self) -> None:
        members = set(self.states)
        forward: dict[StrEnum, set[StrEnum]] = {state: set() for state in members}
        backward: dict[StrEnum, set[StrEnum]] = {state: set() for state in members}
        for row in self.rows:
            forward[row.source].add(row.target)
            backward[row.target].add(row.source)
        unreachable = members - _closure({self.initial}, forward)
        if unreachable:
            self._fail(f"cannot be reached: {', '.join(sorted(unreachable))}")
        if self.finals:
            traps = members - _closure(set(self.finals), backward)
            if traps:
                self._fail(f"no way from there to a final state: {', '.join(sorted(traps))}")


def _closure(start: set[StrEnum], edges: Mapping[StrEnum, set[StrEnum]]) -> set[StrEnum]:
    seen, frontier = set(start), list(start)
    while frontier:
        for target in edges[frontier.pop()] - seen:
            seen.add(target)
            frontier.append(target)
    return seen
