"""Step boundaries, explored: every order of the memory accesses of ranks and agents.

A rank begins a step, completes it once every rank has begun it (a collective), and comes to its boundary. The code
there is the worker's, that of the orders the agent's, both on real pages. Code is interrupted before every access. To
continue it, it is repeated with the accesses recorded so far: they determine what it does. Memory is sequentially
consistent.
"""

import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias

import pytest

from ftcore.shm.boundary import SAVES, WAITS, BoundaryOrders, BoundaryState, BoundaryWords
from ftcore.worker import _boundary

FIRST, WORDS = 480, 496
"""The words of step boundaries on a page."""

UNCHANGED = (488, 492, 493)
"""Those whose values stay the same: abilities, and the error of a save. When they are read does not matter."""

Trace: TypeAlias = tuple[int, ...]
"""What code has read so far, one number per access; 0 for a write."""

Rank: TypeAlias = tuple[int, Trace, bytes]
"""The newest step begun; the accesses at the boundary behind it, ``STEPS`` before its end; the page."""

Agent: TypeAlias = tuple[int, Trace, int]
"""The number of orders carried out; the accesses of the one in progress; the newest answer."""

World: TypeAlias = tuple[tuple[Rank, Agent], ...]
"""Ranks with their agents, in sorted order: which rank is which makes no difference."""

STEPS: Trace = (-1,)

Order: TypeAlias = Callable[[BoundaryOrders, int], int]
"""What an agent does to a page, given the boundary that the master has chosen; returns the answer."""


class Interrupted(BaseException):
    """The code is about to make another access, or sleeps."""


class Memory:
    """A page on which code repeats its recorded accesses, and makes one more."""

    def __init__(self, page: memoryview, trace: Trace) -> None:
        self.words, self.recorded, self.trace = page.cast("q"), trace, list[int]()
        self.idle = False

    def cast(self, _: str) -> "Memory":
        return self

    def __getitem__(self, at: int) -> int:
        return self.words[at] if at in UNCHANGED else self._access(lambda: self.words[at])

    def __setitem__(self, at: Any, value: Any) -> None:
        if isinstance(at, int) and at not in UNCHANGED:  # else the text of an error, which is empty
            self._access(lambda: self.words.__setitem__(at, value))

    def _access(self, access: Callable[[], int | None]) -> int:
        if self.idle:
            return 0
        made = len(self.trace)
        if made > len(self.recorded):
            self.interrupt()
        self.trace.append(self.recorded[made] if made < len(self.recorded) else access() or 0)
        return self.trace[-1]

    def interrupt(self, *_: Any) -> None:
        self.idle = True  # `finally` of the interrupted code has no effect
        raise Interrupted


STATES_MIN = 1000


def page_of(content: bytes) -> memoryview:
    return memoryview(bytearray(8 * FIRST) + content)


def read(content: bytes) -> BoundaryState:
    return BoundaryOrders(page_of(content)).read()


@cache
def at_boundary(number: int, trace: Trace, content: bytes) -> Rank:
    """Let a rank make one access at a boundary; in a step: it has gone on."""
    page = page_of(content)
    memory = Memory(page, trace)
    memory.idle = True
    boundary = _boundary.StepBoundary(BoundaryWords(memory), lambda mono: None)  # type: ignore[arg-type]
    boundary.on_save(lambda step: None)
    for step in range(1, number):
        boundary.reached(step)
    memory.idle = False
    entered: list[int] = []

    def slept(_: float) -> None:
        entered.append(-1)
        memory.interrupt()

    carry_out = boundary._carry_out
    boundary._carry_out = lambda *args: (entered.append(len(memory.trace)), carry_out(*args))  # type: ignore[assignment,func-returns-value,method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", slept)
        try:
            boundary.reached(number)
        except Interrupted:
            made = tuple(memory.trace)
            # A sleep leads to the begin of the loop: nothing of what was read in it matters any more.
            return number, made[: entered[0]] if entered and entered[-1] < 0 else made, bytes(page[8 * FIRST :])
    return number, STEPS, bytes(page[8 * FIRST :])


@cache
def obey(order: Order, chosen: int, trace: Trace, content: bytes) -> tuple[Trace | None, int, bytes]:
    """Let an agent make one access for an order; without a trace, it has carried it out, with an answer."""
    page = page_of(content)
    memory = Memory(page, trace)
    try:
        answer = order(BoundaryOrders(memory), chosen)  # type: ignore[arg-type]
    except Interrupted:
        return tuple(memory.trace), 0, bytes(page[8 * FIRST :])
    return None, answer, bytes(page[8 * FIRST :])


def find(page: BoundaryOrders, chosen: int) -> int:
    page.stop_at(1)
    return page.read().stops_at


def find_reached(page: BoundaryOrders, chosen: int) -> int:
    page.stop_at(1)
    return max(1, page.read().reached)


def pause(page: BoundaryOrders, chosen: int) -> int:
    page.stop_at(chosen)
    return chosen


def save(page: BoundaryOrders, chosen: int) -> int:
    page.save_at(chosen)
    page.stop_at(0)
    return chosen


def resume(page: BoundaryOrders, chosen: int) -> int:
    page.stop_at(0)
    return chosen


class Job:
    """Ranks with an agent each, and the orders of a master, each of which follows all answers to the one before.

    Args:
        orders: the orders.
        ranks: number of ranks.
        last: no rank begins a later step until all agents have begun to find the boundary.
        stopped: the ranks stop at their first boundary from the beginning.
    """

    def __init__(self, *orders: Order, ranks: int = 2, last: int = 2, stopped: bool = False) -> None:
        self.orders, self.last = orders, last
        self.finds = next(n for n, order in enumerate(orders) if order in (find, find_reached))
        page = page_of(bytes(8 * (WORDS - FIRST)))
        BoundaryWords(page).can(WAITS | SAVES)
        BoundaryOrders(page).stop_at(int(stopped))
        self.beginning: World = (((1, STEPS, bytes(page[8 * FIRST :])), (0, (), 0)),) * ranks

    def chosen(self, world: World) -> int:
        """The boundary that the master has chosen; 0: it has not yet."""
        found = all(done > self.finds for _, (done, _, _) in world)
        return max(answer for _, (_, _, answer) in world) if found else 0

    def fulfilled(self, world: World) -> bool:
        """Whether the last order has its effect on all ranks."""
        if any(done < len(self.orders) for _, (done, _, _) in world):
            return False
        chosen, states = self.chosen(world), [read(content) for (_, _, content), _ in world]
        if self.orders[-1] is save:
            return all(state.saved == chosen for state in states)
        return all(state.waits and state.reached == states[0].reached for state in states)

    def wrong(self, world: World) -> bool:
        """Whether a rank has passed the chosen boundary without what was ordered there."""
        chosen = self.chosen(world)
        passed = (content for (begun, _, content), _ in world if 0 < chosen < begun)
        return any(self.orders[-1] is not save or read(content).saved != chosen for content in passed)

    def following(self, world: World) -> Iterator[World]:
        """What one more access, or step, of a rank or an agent leads to."""
        for number, (rank, agent) in enumerate(world):
            others = world[:number] + world[number + 1 :]
            after = self._rank_moves(world, rank)
            if after is not None:
                yield tuple(sorted((*others, (after, agent))))
            obeyed = self._agent_moves(world, rank, agent)
            if obeyed is not None:
                yield tuple(sorted((*others, obeyed)))

    def _rank_moves(self, world: World, rank: Rank) -> Rank | None:
        begun, trace, content = rank
        if trace == STEPS:
            return (begun, (), content) if all(other >= begun for (other, _, _), _ in world) else None
        after = at_boundary(*rank)
        if after[1] != STEPS:
            return after
        found = all(done > self.finds or (done == self.finds and trace) for _, (done, trace, _) in world)
        return (begun + 1, *after[1:]) if found or begun < self.last else None

    def _agent_moves(self, world: World, rank: Rank, agent: Agent) -> tuple[Rank, Agent] | None:
        (begun, at, content), (done, trace, answer) = rank, agent
        if done == len(self.orders) or any(other < done for _, (other, _, _) in world):
            return None
        after, answered, content = obey(self.orders[done], self.chosen(world), trace, content)
        return (begun, at, content), (done, after, answer) if after is not None else (done + 1, (), answered)

    def explore(self) -> str:
        """Return what is wrong, or an empty text. Everything ends well if each state can lead to the ordered effect."""
        sources: dict[World, list[World]] = {self.beginning: []}
        frontier, good = [self.beginning], []
        while frontier:
            world = frontier.pop()
            if self.wrong(world):
                return "passed"
            if self.fulfilled(world):
                good.append(world)
                continue
            for after in self.following(world):
                if after not in sources:
                    sources[after] = []
                    frontier.append(after)
                sources[after].append(world)
        assert good and len(sources) > STATES_MIN
        reaches = set(good)
        while good:
            for source in sources[good.pop()]:
                if source not in reaches:
                    reaches.add(source)
                    good.append(source)
        return "" if len(reaches) == len(sources) else "deadlock"


def exchanged(self: Any, words: BoundaryWords, number: int, step: int | None) -> bool:
    """The worker's mistake: it looks for a save before it looks whether it waits."""
    if words.must_save(number):
        self._save_now(words, number, step)
    waits = words.must_wait(number)
    words.waits(waits)
    return waits or words.must_wait(number)


def hasty(self: Any, words: BoundaryWords, number: int, step: int | None) -> bool:
    """The worker's mistake: it goes on without a second look."""
    waits = words.must_wait(number)
    words.waits(waits)
    if words.must_save(number):
        self._save_now(words, number, step)
    return waits


PAUSE, SAVE, AGAIN = (find, pause), (find, save), (resume, find, pause)


@pytest.mark.parametrize(
    ("orders", "ranks"), [(PAUSE, 2), (SAVE, 2), (AGAIN, 2), (PAUSE, 3), pytest.param(SAVE, 3, marks=pytest.mark.long)]
)
def test_ranks_stop_and_save_at_one_boundary(orders: tuple[Order, ...], ranks: int) -> None:
    """All ranks end at the boundary of the second order; none passes it, none waits for one that stands before it."""
    assert Job(*orders, ranks=ranks, last=4 - ranks, stopped=orders is AGAIN).explore() == ""


def test_a_stop_at_the_next_boundary_of_each_rank_is_a_deadlock() -> None:
    """Without the second order, a rank waits in a collective for one that has stopped before it."""
    assert Job(find).explore() == "deadlock"


def test_the_newest_boundary_reached_is_too_early() -> None:
    """A rank that has looked for orders just before the stop comes to one boundary more."""
    assert Job(find_reached, pause).explore() == "passed"


@pytest.mark.parametrize(("mistake", "orders"), [(exchanged, SAVE), (hasty, AGAIN)])
def test_the_order_of_the_accesses_of_a_waiting_worker_matters(
    mistake: Any, orders: tuple[Order, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model finds workers that pass the boundary."""
    monkeypatch.setattr(_boundary.StepBoundary, "_must_wait", mistake)
    at_boundary.cache_clear()
    assert Job(*orders, stopped=orders is AGAIN).explore() == "passed"
    at_boundary.cache_clear()
