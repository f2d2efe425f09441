"""Lookups of the leader in a store that may be slow."""

import asyncio

import pytest

from ftcore.errors import LogUnavailable
from ftcore.ports import Candidate, Leader
from ftcore.runtime.agent.link.lookup import LeaderLookup

LEADER = Leader(term=1, candidate=Candidate(host="h", pid=1, address="unix:m"), alive=True)


class SlowStore:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = self.given_up = 0
        self.answers = asyncio.Event()
        self.error = False

    async def leader(self) -> Leader:
        self.asked += 1
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.error:
            raise LogUnavailable("away")
        return LEADER


def test_the_answer_of_a_slow_store_is_not_lost() -> None:
    """The question stays open until it is answered; an error is an answer. Then the store is asked again."""

    async def scenario() -> None:
        store = SlowStore()
        lookup = LeaderLookup(store)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await lookup.ask(0.001)
        assert store.asked == 1
        store.answers.set()
        assert await lookup.ask(60) is LEADER
        store.error = True
        with pytest.raises(LogUnavailable):
            await lookup.ask(None)
        store.error = False
        assert await lookup.ask(None) is LEADER
        assert (store.asked, store.given_up) == (3, 0)

    asyncio.run(scenario())


def test_an_answer_that_would_be_out_of_date_is_given_up() -> None:
    """An agent that was admitted meanwhile may need the next answer hours later."""

    async def scenario() -> None:
        store = SlowStore()
        lookup = LeaderLookup(store)
        with pytest.raises(TimeoutError):
            await lookup.ask(0.001)
        await lookup.drop()
        await lookup.drop()
        assert store.given_up == 1
        store.answers.set()
        assert await lookup.ask(None) is LEADER
        assert store.asked == 2

    asyncio.run(scenario())
