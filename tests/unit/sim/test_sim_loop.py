"""The event loop of a simulated process."""

import asyncio
from collections.abc import Iterator

import pytest

from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.loop import VirtualLoop


@pytest.fixture
def clock() -> Iterator[Scheduler]:
    yield Scheduler()
    asyncio._set_running_loop(None)


@pytest.mark.parametrize("again", [False, True])
def test_one_task_stalls_while_the_others_run(clock: Scheduler, again: bool) -> None:
    """Then it goes on where it was; a second stall ends the first one."""
    loop = VirtualLoop(clock, 0, lambda: 0, lambda why, error: pytest.fail(why))  # type: ignore[abstract]
    seen: dict[str, list[float]] = {"one": [], "other": []}

    async def count(name: str) -> None:
        for _ in range(5):
            await asyncio.sleep(1.0)
            seen[name].append(clock.now / 1e9)

    one, other = (loop.create_task(count(name)) for name in seen)
    clock.run(ns(2.5))
    loop.stall(one, ns(3.0))
    if again:
        clock.run(ns(3.5))
        loop.stall(other, ns(1.0))
    clock.run(ns(60.0))
    if again:
        assert seen == {"one": [1, 2, 3.5, 4.5, 5.5], "other": [1, 2, 3, 4.5, 5.5]}
    else:
        assert seen == {"one": [1, 2, 5.5, 6.5, 7.5], "other": [1, 2, 3, 4, 5]}
    assert loop.tasks() == []


def test_a_process_that_dies_while_a_task_stalls_runs_nothing_more(clock: Scheduler) -> None:
    """Neither at the end of the stall."""
    loop = VirtualLoop(clock, 0, lambda: 0, lambda why, error: pytest.fail(why))  # type: ignore[abstract]
    seen: list[float] = []

    async def count() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(loop.time())

    task = loop.create_task(count())
    clock.run(ns(1.5))
    loop.stall(task, ns(2.0))
    clock.run(ns(2.5))
    loop.kill()
    clock.run(ns(10.0))
    assert seen == [1.0]
    loop.dispose()
