"""What an agent reports of its keeper and of the storage, and when."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from stored_checkpoints import write_shards

from ftcore.checkpoint.manifest import commit
from ftcore.checkpoint.storage import Storage
from ftcore.commands import ParkWorkers, SaveCheckpoint
from ftcore.events.checkpoint import CheckpointCommitted, CheckpointFound, MemoryHeld, ShardPersisted
from ftcore.ids import Round
from ftcore.ports import Performed
from ftcore.runtime.agent.checkpoints import NodeCheckpoints
from ftcore.runtime.agent.search import search
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.keeper.search import FoundOnStorage

SHARD: dict[str, Any] = {"rank": 0, "round": 1, "step": 9, "group": 0, "groups": 1, "ranks": 1, "tensors": True}
WRITTEN = {**SHARD, "file": "shard-0", "bytes": 1, "seconds": 0.1}


class Keeper:
    """A keeper that holds one shard."""

    alive: ClassVar = True

    def __init__(self) -> None:
        self.log = "log"

    def configure(self, log: str) -> None:
        self.log = log

    async def held(self) -> list[dict[str, Any]]:
        return [SHARD]


class Workers:
    """Workers that do what they are told."""

    async def perform(self, command: Any, effect: str) -> Performed:
        return Performed(9)


def reporting() -> tuple[NodeCheckpoints, list[Any]]:
    facts: list[Any] = []
    checkpoints = NodeCheckpoints(Keeper())  # type: ignore[arg-type]
    checkpoints.attach(facts.append, lambda: ("node", "life"))
    checkpoints.welcomed("log")
    return checkpoints, facts


def test_what_was_written_without_an_agent_is_reported_once_it_has_joined() -> None:
    """The keeper reports it as soon as an agent takes over, before that agent has joined; nothing is lost."""

    async def scenario() -> None:
        checkpoints, facts = reporting()
        checkpoints.on_persisted(WRITTEN)
        await checkpoints.prepare()
        checkpoints.on_failed({"round": 1, "step": 10, "rank": 0, "error": "full"})
        assert facts == []
        log, shards = checkpoints.prepared()
        assert (log, [shard.step for shard in shards]) == ("log", [9]) and checkpoints.prepared() == ("", ())
        checkpoints.joined()
        assert [type(fact).__name__ for fact in facts] == ["ShardPersisted", "CheckpointFailed"]
        checkpoints.on_persisted(WRITTEN)
        assert isinstance(facts[-1], ShardPersisted) and facts[-1].incarnation == "life"
        await checkpoints.prepare()
        checkpoints.on_persisted(WRITTEN)
        assert len(facts) == 3, "the next incarnation has not joined yet"

    asyncio.run(scenario())


def test_parked_workers_report_what_they_hold() -> None:
    """The next world depends on it, as after a stop."""

    async def scenario() -> None:
        checkpoints, facts = reporting()
        performers = checkpoints.performers({ParkWorkers: Workers(), SaveCheckpoint: Workers()})
        done = await performers[ParkWorkers].perform(ParkWorkers(round=Round(1), grace_s=1.0), "park.1")
        assert done.step == 9 and [type(fact) for fact in facts] == [MemoryHeld]
        assert ParkWorkers not in checkpoints.performers({})

    asyncio.run(scenario())


@pytest.mark.parametrize("log", ["log", "another"])
def test_facts_wait_until_their_log_is_known(log: str) -> None:
    """What the keeper of a predecessor, or the storage, has of another log is not reported into this one."""
    facts: list[Any] = []
    known = NodeCheckpoints(Keeper(), keep=3)  # type: ignore[arg-type]
    known.attach(facts.append, lambda: ("node0", "n1"))
    known.on_committed({"round": 2, "step": 7, "path": "/saved/7"})
    known.found([FoundOnStorage("log", 2, 7, "/saved/7"), FoundOnStorage("third", 1, 3, "/saved/3")])
    known.joined()
    assert facts == []
    known.welcomed(log)
    if log == "log":
        committed, found = facts
        assert committed == CheckpointCommitted(round=2, step=7, where="/saved/7", kept=3, own=True)
        assert isinstance(found, CheckpointFound) and [each.step for each in found.checkpoints] == [7]
    else:
        assert facts == []
    known.on_failed({"round": 3, "step": 8, "rank": 0, "error": "full"})
    assert facts[-1].step == 8


def test_the_storage_is_searched_in_another_process(tmp_path: Path) -> None:
    """The newest complete checkpoints of the job; nothing if the storage does not answer."""
    storage = Storage(str(tmp_path / "saved"))
    for step, round_ in ((9, 1), (7, 2), (8, 2)):
        names = write_shards(storage, step=step, round_=round_)
        if step != 8:
            commit(storage, f"step-{step:09d}-r{round_}", names, log="5a1e")

    async def body() -> list[list[FoundOnStorage]]:
        reaper = Reaper()
        try:
            found = await search(reaper, storage.url, "demo")
            return [found, await search(reaper, storage.url, "demo", 0.0), await search(reaper, "nosuch://x", "demo")]
        finally:
            reaper.close()

    found, late, unknown = asyncio.run(body())
    assert found == [FoundOnStorage("5a1e", 2, 7, str(tmp_path / "saved" / "step-000000007-r2"))]
    assert late == unknown == []
