"""What an agent reports of its keeper and of the storage, and when."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import pytest
from stored_checkpoints import write_shards

from ftcore.checkpoint.manifest import commit
from ftcore.checkpoint.storage import Storage
from ftcore.events.checkpoint import CheckpointCommitted, CheckpointFound
from ftcore.runtime.agent.checkpoints import NodeCheckpoints
from ftcore.runtime.agent.search import search
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.keeper.search import FoundOnStorage


class AdoptedKeeper:
    """A keeper with the memory of a log."""

    alive: ClassVar = True

    def __init__(self) -> None:
        self.log = "log"

    def configure(self, log: str) -> None:
        self.log = log


@pytest.mark.parametrize("log", ["log", "another"])
def test_facts_wait_until_their_log_is_known(log: str) -> None:
    """What the keeper of a predecessor, or the storage, has of another log is not reported into this one."""
    facts: list[Any] = []
    known = NodeCheckpoints(AdoptedKeeper(), keep=3)  # type: ignore[arg-type]
    known.attach(facts.append, lambda: ("node0", "n1"))
    known.on_committed({"round": 2, "step": 7, "path": "/saved/7"})
    known.found([FoundOnStorage("log", 2, 7, "/saved/7"), FoundOnStorage("third", 1, 3, "/saved/3")])
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
