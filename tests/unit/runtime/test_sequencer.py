"""The sequencer: its appends, their sizes, and facts that cannot be appended."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ftcore import __version__
from ftcore.engine.decide import turn
from ftcore.engine.turn import own_fact
from ftcore.events.codec import encode
from ftcore.events.envelope import Event
from ftcore.events.job import JobParked
from ftcore.events.master import MasterElected
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import Nanoseconds, Seq
from ftcore.logs import open_log
from ftcore.ports import GROUP_BYTES_MAX, Candidate, EventLog
from ftcore.runtime.clock import SystemClock
from ftcore.runtime.host import SystemHost
from ftcore.runtime.master import sequencer as module
from ftcore.runtime.master.sequencer import BATCH_BYTES_MAX, Sequencer, refold
from ftcore.states.model import JobState, to_json

ELECTED = MasterElected(host="host", pid=1, address="unix:master", version=__version__)


def said(why: str) -> OperatorCommanded:
    return OperatorCommanded(command="note", who="me", why=why)


class Told:
    """The batches reported by a sequencer, with the state at that time."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.states: list[tuple[Seq, bytes]] = []
        self.sequencer: Sequencer | None = None

    def __call__(self, batch: Sequence[Event]) -> None:
        assert self.sequencer is not None
        self.batches.append([event.type for event in batch])
        self.states.append((batch[-1].seq, to_json(self.sequencer.state)))


async def sequenced(log: EventLog, *facts: Any) -> tuple[Told, list[Event]]:
    """Submit facts at once; returns the reported batches and the log once all are processed."""
    leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:master"))
    told = Told()
    told.sequencer = Sequencer(log, JobState(), leadership.term, SystemClock(), told)
    for fact in facts:
        last = told.sequencer.submit(own_fact(fact))
    running = asyncio.create_task(told.sequencer.run())
    waiting: set[asyncio.Future[Any]] = {running, last}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    for seq, state in told.states:
        assert state == to_json(await refold(log, seq)), f"what was told at {seq} is not what the log says"
    return told, [event async for event in log.read()]


async def in_memory(name: str) -> EventLog:
    return await open_log(f"memory://sequencer-{name}", "job", create=True)


def test_a_large_group_after_many_small_ones_is_appended_alone() -> None:
    """A batch beyond the append limit is appended in parts of whole groups, and reported as one."""
    sizes = (BATCH_BYTES_MAX - 20_000, GROUP_BYTES_MAX - 20_000)

    async def scenario() -> tuple[Told, list[Event]]:
        return await sequenced(await in_memory("large"), ELECTED, *(said("x" * size) for size in sizes))

    told, events = asyncio.run(scenario())
    assert sum(map(len, map(encode, events))) > GROUP_BYTES_MAX
    assert [event.type for event in events] == ["master.elected", "operator.commanded", "operator.commanded"]
    assert told.batches == [["master.elected", "operator.commanded", "operator.commanded"]]


def test_facts_before_one_that_cannot_be_folded_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn that fails halfway leaves no trace: reports and state are those of the log."""

    def failing(state: JobState, fact: Event) -> list[Event]:
        events = turn(state, fact)
        if getattr(fact.data, "why", "") == "poison":
            raise KeyError("half way")
        return events

    monkeypatch.setattr(module, "turn", failing)

    async def scenario() -> tuple[Told, list[Event]]:
        return await sequenced(await in_memory("poison"), ELECTED, said("poison"), said("later"))

    told, events = asyncio.run(scenario())
    assert told.batches == [["master.elected"], ["job.parked"], ["operator.commanded"]]
    assert [event.seq for event in events] == [1, 2, 3]
    assert isinstance(events[1].data, JobParked)
    assert events[1].data.error == "KeyError: 'half way'"
    assert '"why":"poison"' in events[1].data.fact


def test_a_group_beyond_the_append_limit_parks_the_job() -> None:
    """The job is parked with the reason; no master fails because of it, and earlier facts are appended."""

    async def scenario() -> tuple[Told, list[Event]]:
        return await sequenced(await in_memory("over"), ELECTED, said("x" * GROUP_BYTES_MAX), said("later"))

    told, events = asyncio.run(scenario())
    assert told.batches == [["master.elected"], ["job.parked"], ["operator.commanded"]]
    parked = events[1].data
    assert isinstance(parked, JobParked)
    assert "operator.commanded and its 0 decisions are 1048" in parked.error
    assert f"the limit of one append is {GROUP_BYTES_MAX}" in parked.error
    assert parked.fact.startswith('{"id":')
    assert len(encode(events[1])) < GROUP_BYTES_MAX // 4


def test_a_store_with_a_lower_limit_gets_smaller_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused batch is appended group by group; a refused group parks the job."""
    takes = 50_000

    async def scenario() -> tuple[Told, list[Event]]:
        log = await in_memory("less")
        append = log.append

        async def refusing(events: Sequence[Event], **more: Any) -> None:
            if sum(map(len, map(encode, events))) > takes:
                raise ValueError("etcdserver: request is too large")
            await append(events, **more)

        monkeypatch.setattr(log, "append", refusing)
        return await sequenced(log, ELECTED, said("a" * 40_000), said("b" * 40_000), said("c" * 60_000), said("later"))

    told, events = asyncio.run(scenario())
    note = "operator.commanded"
    assert told.batches == [["master.elected", note, note], ["job.parked"], [note]]
    assert [getattr(event.data, "why", "")[:5] for event in events] == ["", "aaaaa", "bbbbb", "", "later"]
    assert isinstance(events[3].data, JobParked)
    assert events[3].data.error.endswith("etcdserver: request is too large")


class StoppedHost(SystemHost):
    """A machine whose monotonic clock moves only when ``at`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 1_000_000_000

    def mono(self) -> Nanoseconds:
        return Nanoseconds(self.at)


def test_lag_is_that_of_the_oldest_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts wait while the log cannot be written; the age of the oldest one grows until it is durable."""

    async def scenario() -> None:
        log = await in_memory("lag")
        leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:master"))
        told, host = Told(), StoppedHost()
        told.sequencer = sequencer = Sequencer(log, JobState(), leadership.term, SystemClock(host=host), told)
        assert sequencer.lag() == (0, 0.0)
        gate = asyncio.Event()
        append = log.append

        async def slow(*args: Any, **kwargs: Any) -> None:
            await gate.wait()
            await append(*args, **kwargs)

        monkeypatch.setattr(log, "append", slow)
        first = sequencer.submit(own_fact(ELECTED))
        running = asyncio.create_task(sequencer.run())
        await asyncio.sleep(0)
        host.at += 4_000_000_000
        later = sequencer.submit(own_fact(said("later")))
        host.at += 1_000_000_000
        assert sequencer.ahead and sequencer.lag() == (2, 5.0)
        gate.set()
        await asyncio.gather(first, later)
        assert sequencer.lag() == (0, 0.0)
        running.cancel()

    asyncio.run(scenario())
