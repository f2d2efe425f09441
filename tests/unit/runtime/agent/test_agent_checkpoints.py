"""The agent's part in checkpoints: what it reports, and when."""

import asyncio
from typing import Any

from ftcore.commands import ParkWorkers, SaveCheckpoint
from ftcore.events.checkpoint import MemoryHeld, ShardPersisted
from ftcore.ids import Round
from ftcore.ports import Performed
from ftcore.runtime.agent.checkpoints import NodeCheckpoints

SHARD: dict[str, Any] = {"rank": 0, "round": 1, "step": 9, "group": 0, "groups": 1, "ranks": 1, "tensors": True}
WRITTEN = {**SHARD, "file": "shard-0", "bytes": 1, "seconds": 0.1}


class Keeper:
    """A keeper that holds one shard."""

    alive, log = True, "log"

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
    return checkpoints, facts


def test_what_was_written_without_an_agent_is_reported_once_it_has_joined() -> None:
    """The keeper reports it as soon as an agent takes over, before that agent has joined; nothing is lost."""

    async def scenario() -> None:
        checkpoints, facts = reporting()
        checkpoints.on_persisted(WRITTEN)
        await checkpoints.prepare()
        checkpoints.on_failed({"round": 1, "step": 10, "rank": 0, "error": "full"})
        assert facts == []
        checkpoints.report_prepared()
        assert [type(fact).__name__ for fact in facts] == ["MemoryHeld", "ShardPersisted", "CheckpointFailed"]
        checkpoints.on_persisted(WRITTEN)
        assert isinstance(facts[-1], ShardPersisted) and facts[-1].incarnation == "life"
        await checkpoints.prepare()
        checkpoints.on_persisted(WRITTEN)
        assert len(facts) == 4, "the next incarnation has not joined yet"

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
