"""The sequencer: what it hands to the log, and in what portions."""

import asyncio
from collections.abc import Sequence

from ftcore import __version__
from ftcore.engine.turn import own_fact
from ftcore.events.codec import encode
from ftcore.events.envelope import Event
from ftcore.events.master import MasterElected
from ftcore.events.operator import OperatorCommanded
from ftcore.logs import open_log
from ftcore.ports import GROUP_BYTES_MAX, Candidate
from ftcore.runtime.clock import SystemClock
from ftcore.runtime.master.sequencer import BATCH_BYTES_MAX, Sequencer
from ftcore.states.model import JobState


def test_a_large_group_behind_many_small_ones_is_appended_alone() -> None:
    """A batch that is more than the log takes at once lands in parts of whole groups, and is told of as one."""
    sizes = (BATCH_BYTES_MAX - 20_000, GROUP_BYTES_MAX - 20_000)

    async def scenario() -> tuple[list[int], list[Event]]:
        log = await open_log("memory://sequencer", "job", create=True)
        leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:master"))
        told: list[int] = []

        def committed(batch: Sequence[Event]) -> None:
            told.append(len(batch))

        sequencer = Sequencer(log, JobState(), leadership.term, SystemClock(), committed)
        elected = MasterElected(host="host", pid=1, address="unix:master", version=__version__)
        facts = [elected, *(OperatorCommanded(command="note", who="me", why="x" * size) for size in sizes)]
        done = [sequencer.submit(own_fact(fact)) for fact in facts]
        running = asyncio.create_task(sequencer.run())
        await asyncio.wait([running, asyncio.gather(*done)], return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        return told, [event async for event in log.read()]

    told, events = asyncio.run(scenario())
    assert sum(map(len, map(encode, events))) > GROUP_BYTES_MAX
    assert [event.type for event in events] == ["master.elected", "operator.commanded", "operator.commanded"]
    assert told == [3]
