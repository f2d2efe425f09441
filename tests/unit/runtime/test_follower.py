"""A candidate's view of the log, on a log in memory."""

import asyncio
import time

from ftcore import __version__
from ftcore.engine.turn import own_fact
from ftcore.events.master import MasterElected
from ftcore.logs import open_log
from ftcore.ports import Candidate
from ftcore.runtime import tasks
from ftcore.runtime.clock import SystemClock
from ftcore.runtime.master.follower import Follower
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.states.model import JobState

HOUR_NS = 3600 * 10**9
MINUTE_NS = HOUR_NS // 60


def test_a_standby_knows_the_leaders_clock() -> None:
    """Events that came while it followed show it, whatever its own host's clock says; those it only read do not."""

    async def scenario() -> None:
        log = await open_log("memory://follower", "job", create=True)
        leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:master"))
        behind = SystemClock(ahead=time.time_ns() - time.monotonic_ns() - HOUR_NS)
        sequencer = Sequencer(log, JobState(), leadership.term, behind, lambda _batch: None)
        elected = MasterElected(host="host", pid=1, address="unix:master", version=__version__)
        leading = asyncio.create_task(sequencer.run())
        await sequencer.submit(own_fact(elected))
        follower = Follower(log, saw_run=False)
        following = asyncio.create_task(follower.follow())
        async with asyncio.timeout(60):
            await follower.caught_up.wait()
            await sequencer.submit(own_fact(elected))
            while follower.state.seq < 2:
                await asyncio.sleep(0.001)
        await tasks.end([leading, following])
        assert follower.ahead is not None
        assert abs(SystemClock(follower.state.time, follower.ahead).now() - behind.now()) < MINUTE_NS

    asyncio.run(scenario())
