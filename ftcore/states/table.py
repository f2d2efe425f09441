"""State machines as tables: declaration, checks at import, and steps.

A row reads: *in this state, this trigger leads to that state (if the guard holds)*. A trigger is the name of an event
type, with a qualifier where a type has several meanings (``action.ordered/stop_workers``). Machines outside of the log
(agent, master) have their own triggers.

House rules:
- only rows permit transitions;
- each pair of state and trigger is exactly one of three: a row, *ignored* with a reason, or an *anomaly*, which is
  recorded as ``anomaly.observed`` and never changes the state;
- an inconsistent table raises ``DefinitionError`` at import.
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
        trigger: name of the trigger.
        source: the state in which it is accepted.
        target: the next state.
        guard: name of the machine's guard that must hold; empty: none.
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
        trigger: name of the trigger.
        sources: the states that ignore it.
        reason: why they ignore it.
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
        states: the enumeration of its states; each member has a docstring.
        initial: the first state.
        finals: states that only a transition to the initial state leaves.
        table: the rows.
        ignored: the triggers that states ignore.
        guards: functions of the step's context, by name.

    Raises:
        DefinitionError: duplicate rows, an unreachable state, a state from which no final state can be reached, an
            unknown or unused guard, an ignored pair that is also a row.
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
        self._ignored = {(state, entry.trigger) for entry in ignored for state in entry.sources}
        self._check()

    def step(self, state: StrEnum, trigger: str, context: Any = None) -> StrEnum | None:
        """The next state.

        Args:
            state: the current state.
            trigger: name of the trigger.
            context: the argument of the guards.

        Returns:
            The next state; the same one if the pair is ignored; None if it is an anomaly.
        """
        for row in self._next.get((state, trigger), ()):
            if not row.guard or self.guards[row.guard](context):
                return row.target
        return state if (state, trigger) in self._ignored else None

    def candidates(self, state: StrEnum, trigger: str) -> tuple[Row, ...]:
        """The rows of the pair, in the order in which their guards are evaluated."""
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
                self._fail(f"{trigger} in {state}: a row without a guard hides the rows after it")
        used = {row.guard for row in self.rows if row.guard}
        if used != set(self.guards):
            self._fail(f"guards of rows and of the machine differ: {sorted(used ^ set(self.guards))}")
        for row in self.rows:
            if row.source in self.finals and row.target is not row.source and not self._reopens(row):
                self._fail(f"{row.source} is final, but {row.trigger} leaves it")

    def _reopens(self, row: Row) -> bool:
        """Whether the row starts a new run: only a transition to the initial state may leave a final one."""
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
            self._fail(f"unreachable states: {', '.join(sorted(unreachable))}")
        if self.finals:
            traps = members - _closure(set(self.finals), backward)
            if traps:
                self._fail(f"no path to a final state from: {', '.join(sorted(traps))}")


def _closure(start: set[StrEnum], edges: Mapping[StrEnum, set[StrEnum]]) -> set[StrEnum]:
    seen, frontier = set(start), list(start)
    while frontier:
        for target in edges[frontier.pop()] - seen:
            seen.add(target)
            frontier.append(target)
    return seen
