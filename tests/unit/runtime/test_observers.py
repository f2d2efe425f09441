"""Observers of installed packages: how they are found, and what they are given of a job."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ftcore import Observed, Security
from ftcore.engine.turn import own_fact, sequence
from ftcore.errors import LogCorrupt, LogUnavailable, UsageError
from ftcore.events.envelope import Event
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import Seq, Term
from ftcore.logs import open_log
from ftcore.ports import Candidate, EventLog
from ftcore.runtime import observers
from ftcore.runtime.observers import observer, problems
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.states.fold import fold
from ftcore.states.model import JobState

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import install

ADAPTER = """
from ftcore import ObserverAdapter
from ftcore.errors import UsageError

def check(url):
    if url.endswith("wrong"):
        raise UsageError(f"{url}: expected acme:right")

A = ObserverAdapter(run=None, check=check, problem=lambda url: "no room" if url.endswith("full") else "")
B = object()
"""
ENTRIES = {
    "ftcore.observers": {"acme": "acme_observer:A", "odd": "acme_observer:B", "none": "acme_none:X"},
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "acme-observer", "2.1", {"acme_observer.py": ADAPTER}, ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "acme_observer", raising=False)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("acne:", "'acne:' is not the URL of an observer: did you mean acme:"),
        ("9400", "'9400' is not the URL of an observer: known are .*acme:"),
        ("acme:wrong", "acme:wrong: expected acme:right"),
        ("none:", "the observer none: of acme-observer 2.1 cannot be used: ModuleNotFoundError"),
        ("odd:", "of acme-observer 2.1 cannot be used: acme_observer:B is not of the type ObserverAdapter"),
    ],
)
def test_what_cannot_be_used(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        observer(url)


@pytest.mark.usefixtures("installed")
def test_problems_of_this_host() -> None:
    """One line for each observer that would not work here."""
    assert problems(["acme:right", "acme:full"]) == ["--observe acme:full: no room"]


class Job:
    """A log in memory, and the observer's view of it."""

    def __init__(self, log: EventLog, term: Term) -> None:
        self.log, self.term, self.state = log, term, JobState()
        self.over = asyncio.Event()
        self.observed = Observed(log, Security(), GrpcTransport(Security()), self.over)

    async def add(self, count: int) -> None:
        for _ in range(count):
            fact = own_fact(OperatorCommanded(command="note", who="me", why="x"))
            event = sequence(self.state, fact, now=1, term=self.term)  # type: ignore[arg-type]
            await self.log.append([event], term=self.term, expected_seq=Seq(self.state.seq))
            fold(self.state, event)


async def job(name: str) -> Job:
    log = await open_log(f"memory://observers-{name}", "job", create=True)
    leadership = await log.campaign(Candidate(host="host", pid=1, address="unix:/nowhere"))
    return Job(log, leadership.term)


def test_events_from_the_first_to_the_last() -> None:
    """Old ones, new ones, and at the end those that were appended before the end."""

    async def scenario() -> None:
        made = await job("all")
        await made.add(3)
        seen: list[int] = []

        async def read() -> None:
            async for event in made.observed.events():
                seen.append(event.seq)

        reading = asyncio.create_task(read())
        async with asyncio.timeout(30):
            while len(seen) < 3:
                await asyncio.sleep(0)
            await made.add(2)
            while len(seen) < 5:
                await asyncio.sleep(0)
            await made.add(2)
            made.over.set()
            await reading
        assert seen == [1, 2, 3, 4, 5, 6, 7]

    asyncio.run(scenario())


def test_a_log_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is left out or repeated; ``lost`` has the reason meanwhile. Damage is an error."""
    monkeypatch.setattr(observers, "RETRY_S", (0.001, 0.002))

    async def scenario() -> None:
        made = await job("outage")
        await made.add(4)
        read, fails = made.log.read, 3
        reasons: list[str] = []

        async def broken(after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
            nonlocal fails
            reasons.append(made.observed.lost)
            async for event in read(after, until):
                yield event
                if fails and event.seq == 2:
                    fails -= 1
                    raise LogUnavailable("the store is unreachable")

        monkeypatch.setattr(made.log, "read", broken)
        seen = []
        async for event in made.observed.events():
            seen.append(event.seq)
            if event.seq == 4:
                made.over.set()
        assert seen == [1, 2, 3, 4]
        assert "the store is unreachable" in reasons and made.observed.lost == ""

        async def damaged(after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
            raise LogCorrupt("a wrong digest")
            yield

        monkeypatch.setattr(made.log, "read", damaged)
        with pytest.raises(LogCorrupt):
            [event async for event in made.observed.events()]

    asyncio.run(scenario())


def test_a_master_that_does_not_answer() -> None:
    """A look finds nothing; the log's end is known all the same."""

    async def scenario() -> None:
        made = await job("silent")
        await made.add(2)
        assert await made.observed.look() is None
        assert await made.observed.last_seq() == 2

    asyncio.run(scenario())
