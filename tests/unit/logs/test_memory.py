"""The in-memory log, beyond the conformance suite."""

import asyncio
import threading
import uuid

from ftcore.events import Event, EventId, Kind
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import JobName, Nanoseconds, Seq
from ftcore.logs.memory import MemoryStore
from ftcore.ports import Candidate

JOB = JobName("demo")


def test_event_loops_of_several_threads_share_a_log():
    """A follower in one thread's event loop sees what another thread's appends."""
    name = uuid.uuid4().hex
    seen: list[int] = []
    following = threading.Event()

    async def follow():
        log = await MemoryStore(name).open(JOB, create=True)
        following.set()
        async for event in log.follow():
            seen.append(event.seq)
            if event.seq == 20:
                return

    async def append():
        log = await MemoryStore(name).open(JOB)
        term = (await log.campaign(Candidate(host="h", pid=1, address="a"))).term
        for seq in range(1, 21):
            event = Event(
                seq=Seq(seq),
                id=EventId("m", "1", seq),
                time=Nanoseconds(seq),
                type="operator.commanded",
                kind=Kind.FACT,
                source="t",
                term=term,
                data=OperatorCommanded(command="note", who="w"),
            )
            await log.append([event], term=term, expected_seq=Seq(seq - 1))

    follower = threading.Thread(target=lambda: asyncio.run(follow()))
    follower.start()
    following.wait()
    asyncio.run(append())
    follower.join()
    assert seen == list(range(1, 21))


def test_candidates_win_in_order():
    """Waiting candidates are served first come, first served."""

    async def main():
        log = await MemoryStore(uuid.uuid4().hex).open(JOB, create=True)
        order = []

        async def lead(number):
            leadership = await log.campaign(Candidate(host=str(number), pid=1, address="a"))
            order.append(number)
            await leadership.resign()

        await asyncio.gather(*(lead(number) for number in range(5)))
        assert order == [0, 1, 2, 3, 4]

    asyncio.run(main())
