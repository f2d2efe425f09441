"""Waits with a time limit."""

import asyncio

import pytest

from ftcore.runtime import tasks

LONG_S = 1e6


def test_an_event_that_is_set_ends_the_wait() -> None:
    async def waits() -> bool:
        event = asyncio.Event()
        asyncio.get_running_loop().call_soon(event.set)
        await tasks.wait_or_set(event, LONG_S)
        return event.is_set()

    assert asyncio.run(waits())


@pytest.mark.parametrize("within_s", [0.0, 0.01])
def test_the_event_is_set_when_the_time_is_over(within_s: float) -> None:
    async def waits() -> bool:
        event = asyncio.Event()
        await tasks.wait_or_set(event, within_s)
        return event.is_set()

    assert asyncio.run(waits())


def test_a_cancelled_wait_sets_nothing() -> None:
    async def waits() -> bool:
        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        waiting = asyncio.create_task(tasks.wait_or_set(event, 0.02))
        loop.call_soon(waiting.cancel)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        later = loop.create_future()
        loop.call_later(0.04, later.set_result, None)  # after the time at which the event would have been set
        await later
        return event.is_set()

    assert not asyncio.run(waits())


def test_without_a_limit_only_the_event_ends_the_wait() -> None:
    async def waits() -> bool:
        event = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, event.set)
        await tasks.wait_or_set(event, None)
        return event.is_set()

    assert asyncio.run(waits())
