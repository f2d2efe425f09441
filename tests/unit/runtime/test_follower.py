"""A candidate's view of a log in memory."""

import asyncio
import time

import msgspec

from ftcore import __version__
from ftcore.engine.turn import own_fact
from ftcore.events.envelope import EventId, Fact
from ftcore.events.master import MasterElected
from ftcore.logs import open_log
from ftcore.ports import Candidate, EventLog
from ftcore.runtime import tasks
from ftcore.runtime.clock import SystemClock, at
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.master.follower import Follower
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.states.job import JobPhase
from ftcore.states.model import JobState

HOUR_NS = 3600 * 10**9
MINUTE_NS = HOUR_NS // 60


ELECTED = MasterElected(host="host", pid=1, address="unix:master", version=__version__)


async def led(name: str) -> tuple[EventLog, Sequencer, SystemClock]:
    """A log with one event, whose master's clock is one hour behind."""
    log = await open_log(f"memory://{name}", "job", create=True)
    leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:master"))
    behind = SystemClock(ahead=time.time_ns() - time.monotonic_ns() - HOUR_NS)
    return log, Sequencer(log, JobState(), leadership.term, behind, lambda _batch: None), behind


def test_a_standby_knows_the_leaders_clock() -> None:
    """From events received live, independent of its own host's clock."""

    async def scenario() -> None:
        log, sequencer, behind = await led("standby")
        leading = asyncio.create_task(sequencer.run())
        await sequencer.submit(own_fact(ELECTED))
        follower = Follower(log, saw_run=False)
        following = asyncio.create_task(follower.follow())
        async with asyncio.timeout(60):
            await follower.caught_up.wait()
            await sequencer.submit(own_fact(ELECTED))
            while follower.state.seq < 2:
                await asyncio.sleep(0.001)
        await tasks.end([leading, following])
        assert follower.ahead is not None
        assert abs(SystemClock(follower.state.time, follower.ahead).now() - behind.now()) < MINUTE_NS

    asyncio.run(scenario())


def test_a_late_candidate_learns_the_clock_from_its_agent() -> None:
    """Without live events, from facts of the current run that were stamped on this boot;
    not from other facts or from those of an ended run."""

    async def scenario() -> None:
        log, sequencer, behind = await led("late")
        leading = asyncio.create_task(sequencer.run())
        for boot, known in (("another", False), (THIS_HOST.boot, True)):
            here = msgspec.structs.replace(at(), boot=boot)
            last = await sequencer.submit(Fact(id=EventId("master", "", 0), data=ELECTED, at=here))
            follower = Follower(log, saw_run=False)
            following = asyncio.create_task(follower.follow())
            async with asyncio.timeout(60):
                await follower.caught_up.wait()
            await tasks.end([following])
            assert follower.state.seq >= last and (follower.ahead is not None) == known
        assert abs(SystemClock(follower.state.time, follower.ahead).now() - behind.now()) < MINUTE_NS
        follower.state.phase = JobPhase.SUCCEEDED
        assert follower.ahead is None
        await tasks.end([leading])

    asyncio.run(scenario())
