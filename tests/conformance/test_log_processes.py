"""Conformance of log adapters with several processes: durability, following, failover."""

import asyncio
import signal

import pytest
from log_harness import JOB, Harness, followed, me, notes, seqs

from ftcore.errors import Fenced
from ftcore.ids import Seq, Term
from ftcore.ports import EventLog


async def put(log: EventLog, term: int, first: int, last: int) -> None:
    await log.append(notes(first, last, term), term=Term(term), expected_seq=Seq(first - 1))


def test_acknowledged_events_survive_a_kill(conform_shared):
    """A process killed during appends loses no acknowledged event and leaves no partial group."""

    async def scenario(place: Harness) -> None:
        child = await place.spawn()
        await child.ask(do="campaign")
        await child.tell(do="append", last=0, count=10_000, size=3)
        acked = 0
        while acked < 60:
            acked = (await child.hear())["acked"]
        child.signal(signal.SIGKILL)
        await child.process.wait()
        log = await place.open()
        last = await log.last_seq()
        assert last >= acked
        assert last % 3 == 0
        assert await seqs(log) == list(range(1, last + 1))

    conform_shared(scenario)


def test_another_process_follows(conform_shared):
    """A follower in another process sees each event appended here once."""

    async def scenario(place: Harness) -> None:
        child = await place.spawn()
        log = await place.open()
        term = (await log.campaign(me())).term
        await put(log, term, 1, 10)
        assert await child.ask(do="follow", after=4, until=100) == "following"
        for first in range(11, 100, 3):
            await put(log, term, first, first + 2)
        assert await child.hear() == list(range(5, 101))

    conform_shared(scenario)


def test_following_what_another_process_appends(conform_shared):
    """A follower here sees each event appended by another process once."""

    async def scenario(place: Harness) -> None:
        log = await place.open()
        follower = asyncio.create_task(followed(log, 0, 90))
        child = await place.spawn()
        await child.ask(do="campaign")
        await child.tell(do="append", last=0, count=30, size=3)
        assert await follower == list(range(1, 91))

    conform_shared(scenario)


def test_opening_and_closing_disturbs_nobody(conform_shared):
    """Handles opened and closed during appends of another process see complete prefixes; nothing is lost."""

    async def scenario(place: Harness) -> None:
        writer = await place.spawn()
        await writer.ask(do="campaign")
        await writer.tell(do="append", last=0, count=150, size=10)
        acked = last = 0

        async def listen() -> None:
            nonlocal acked
            while acked < 1500:
                acked = (await writer.hear())["acked"]

        async def come_and_go() -> None:
            nonlocal last
            while acked < 1500:
                store = place.store()
                seen = await seqs(await store.open(JOB))
                assert await store.jobs() == [JOB]
                await store.close()
                assert seen == list(range(1, len(seen) + 1))
                assert len(seen) >= last
                last = max(last, len(seen))

        await asyncio.gather(listen(), come_and_go())
        assert await writer.hear() == 1500
        await writer.end()
        assert await seqs(await place.open()) == list(range(1, 1501))

    conform_shared(scenario)


def test_one_leads_at_a_time(conform):
    """A second candidate waits until the first resigns, then wins a larger term at once."""

    async def scenario(place: Harness) -> None:
        log, other = await place.open(), await place.open()
        assert await log.leader() is None
        first = await log.campaign(me("first"))
        waiting = asyncio.create_task(other.campaign(me("second")))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        leader = await other.leader()
        assert leader is not None
        assert (leader.term, leader.candidate, leader.alive) == (first.term, me("first"), True)
        await first.resign()
        second = await waiting
        assert second.term > first.term
        assert isinstance(await first.lost(), str)
        await first.resign()
        leader = await log.leader()
        assert leader is not None
        assert (leader.term, leader.candidate, leader.alive) == (second.term, me("second"), True)

    conform(scenario)


def test_who_resigned_is_remembered(conform):
    """After a resignation, the last leader is still reported, as not alive."""

    async def scenario(place: Harness) -> None:
        log = await place.open()
        leadership = await log.campaign(me())
        await leadership.resign()
        leader = await log.leader()
        assert leader is not None
        assert (leader.term, leader.candidate, leader.alive) == (leadership.term, me(), False)

    conform(scenario)


def test_a_campaign_can_be_given_up(conform):
    """A cancelled candidate neither wins later nor blocks another."""

    async def scenario(place: Harness) -> None:
        log, other = await place.open(), await place.open()
        first = await log.campaign(me("first"))
        waiting = asyncio.create_task(other.campaign(me("second")))
        await asyncio.sleep(0.15)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await first.resign()
        leader = await log.leader()
        assert leader is not None
        assert not leader.alive
        assert (await log.campaign(me("third"))).term > first.term

    conform(scenario)


def test_closing_the_log_ends_its_leadership(conform):
    """A leader that closes its log without resigning loses the leadership and is replaced within the lease."""

    async def scenario(place: Harness) -> None:
        log, other = await place.open(), await place.open()
        first = await log.campaign(me("first"))
        await log.close()
        assert isinstance(await first.lost(), str)
        assert (await other.campaign(me("second"))).term > first.term

    conform(scenario)


def test_a_leader_keeps_its_lease_while_its_loop_is_busy(conform_shared):
    """A leader whose event loop does nothing else for longer than the lease still leads."""

    async def scenario(place: Harness) -> None:
        child = await place.spawn()
        term = await child.ask(do="campaign")
        await child.tell(do="block", seconds=4.0)
        log = await place.open()
        waiting = asyncio.create_task(log.campaign(me()))
        assert await child.hear() == "blocked"
        assert not waiting.done()
        assert await child.ask(do="append", last=0, count=1) == {"acked": 1}
        leader = await log.leader()
        assert leader is not None
        assert (leader.term, leader.alive) == (term, True)
        waiting.cancel()

    conform_shared(scenario)


def test_a_killed_leader_is_replaced(conform_shared):
    """When the leader's process is killed, a waiting candidate wins."""

    async def scenario(place: Harness) -> None:
        child = await place.spawn()
        term = await child.ask(do="campaign")
        log = await place.open()
        waiting = asyncio.create_task(log.campaign(me()))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        child.signal(signal.SIGKILL)
        leadership = await waiting
        assert leadership.term > term
        await put(log, leadership.term, 1, 2)

    conform_shared(scenario)


def test_a_frozen_leader_is_deposed(conform_shared):
    """A stopped leader is replaced after its lease; after it resumes, it is fenced and notified of the loss."""

    async def scenario(place: Harness) -> None:
        child = await place.spawn()
        term = await child.ask(do="campaign")
        assert await child.ask(do="append", last=0, count=1) == {"acked": 1}
        assert await child.hear() == 1
        log = await place.open()
        child.signal(signal.SIGSTOP)
        leadership = await log.campaign(me())
        assert leadership.term > term
        await put(log, leadership.term, 2, 3)
        child.signal(signal.SIGCONT)
        assert await child.ask(do="append", last=1, count=1) == {"error": "Fenced"}
        assert isinstance(await child.ask(do="lost"), str)
        await put(log, leadership.term, 4, 4)
        leader = await log.leader()
        assert leader is not None
        assert (leader.term, leader.alive) == (leadership.term, True)
        with pytest.raises(Fenced):
            await put(log, term, 5, 5)

    conform_shared(scenario)
