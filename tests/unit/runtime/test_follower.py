"""A candidate's view of a log in memory."""

import asyncio
import time

import msgspec

from ftcore import __version__
from ftcore.engine.master import due
from ftcore.engine.turn import own_fact
from ftcore.events.envelope import Event, EventId, Fact
from ftcore.events.master import MasterElected
from ftcore.events.registry import Kind
from ftcore.ids import Nanoseconds, Seq, Term, seconds
from ftcore.logs import open_log
from ftcore.ports import Candidate, EventLog
from ftcore.runtime import tasks
from ftcore.runtime.clock import SystemClock, at
from ftcore.runtime.host import THIS_HOST, SystemHost
from ftcore.runtime.master.deadlines import Deadlines
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
        assert follower.knows_clock and follower.ahead is not None
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


class SteppedHost(SystemHost):
    """This host, with a wall clock that differs from its own."""

    off = 0

    def wall(self) -> Nanoseconds:
        return Nanoseconds(super().wall() + self.off)


def following(*events: Event, host: SystemHost) -> Follower:
    """A candidate that has read these events, none of them live."""

    async def scenario() -> Follower:
        log = await open_log("memory://read", "job", create=True)
        follower = Follower(log, saw_run=False, host=host)
        for event in events:
            follower._fold(event)
        await log.close()
        return follower

    return asyncio.run(scenario())


def elected(seq: int, term: int, time_ns: int, waited_ns: int) -> Event:
    """An event whose fact, stamped on this boot, waited so long in an outbox."""
    stamp = at()
    return Event(
        seq=Seq(seq),
        id=EventId("master", str(term), seq),
        time=Nanoseconds(time_ns),
        type="master.elected",
        kind=Kind.FACT,
        source="master",
        term=Term(term),
        data=ELECTED,
        at=msgspec.structs.replace(stamp, mono=stamp.mono - waited_ns),
    )


def test_a_fact_that_waited_does_not_put_a_right_clock_ahead() -> None:
    """A wall clock that the log allows is used; one that it does not allow is replaced by the bound from the facts."""
    host = SteppedHost()
    now = host.wall()
    clock = THIS_HOST.wall() - THIS_HOST.mono()
    fact = elected(1, 1, now - 5 * MINUTE_NS, waited_ns=MINUTE_NS + 5 * MINUTE_NS)
    follower = following(fact, host=host)
    for off, expected in ((0, 0), (HOUR_NS, MINUTE_NS), (-HOUR_NS, MINUTE_NS)):
        host.off = off
        assert follower.ahead is not None and not follower.knows_clock
        assert abs(follower.ahead - clock - expected) < MINUTE_NS / 60
    follower = following(fact, msgspec.structs.replace(fact, seq=Seq(2), term=Term(2), at=None), host=host)
    assert follower.ahead is None, "each term has a clock of its own"


class Stopped:
    """A clock that the test sets."""

    time = 0

    def now(self) -> Nanoseconds:
        return Nanoseconds(self.time)

    mono = now


def test_a_master_that_does_not_know_the_clock_lets_nothing_expire_early() -> None:
    """The deadlines of earlier terms get what was left of them at the newest event; those of its own do not change."""

    async def scenario() -> None:
        log = await open_log("memory://unknown", "job", create=True)
        leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:master"))
        for trusted in (True, False):
            clock = Stopped()
            state = JobState(time=seconds(100), deadlines={"backoff/1": seconds(110), "window/1": seconds(150)})
            sequencer = Sequencer(log, state, leadership.term, clock, lambda _batch: None)
            clock.time = seconds(140)
            deadlines = Deadlines(sequencer, clock, lambda: 2.0, trusted=trusted)
            assert due(seconds(110), seconds(140), 2.0) == seconds(144)
            assert round(deadlines.expire() or 0) == (4 if trusted else 10)
            state.deadlines["settle/1"] = seconds(145)
            assert round(deadlines.expire() or 0) == (4 if trusted else 5)
        await log.close()

    asyncio.run(scenario())
