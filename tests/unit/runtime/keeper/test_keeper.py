"""The keeper as a real process: what it holds outlives writers and agents; what it writes is whole."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from ftcore.checkpoint.layout import Piece, ShardIndex, placed
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.errors import Refused
from ftcore.runtime.agent.keeper_link import KeeperLink
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.keeper.config import KeeperConfig
from ftcore.shm.staging import QUEUED, needed
from ftcore.worker._keeper import KeeperClient, StagingPair

PATIENCE_S = 30.0
T = TypeVar("T")
CLIENTS: list[KeeperClient] = []


def run(body: Awaitable[None]) -> None:
    async def main() -> None:
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                await body
        finally:
            while CLIENTS:
                CLIENTS.pop().close()

    asyncio.run(main())


async def blocking(work: Callable[..., T], *args: Any) -> T:
    """Run a worker's call, which blocks, while the agent's loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: work(*args))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def agent(root: Path, *, memory: int = 0, url: bool = True) -> AsyncIterator[KeeperLink]:
    """An agent with its keeper, which ends with the test."""
    reaper = Reaper()
    place = str(root / "saved") if url else ""
    config = KeeperConfig(job="job", log="", node="node", url=place, memory=memory)
    (root / "run").mkdir(mode=0o700, exist_ok=True)
    link = KeeperLink(reaper, str(root / "run" / "k.sock"), config)
    await link.open()
    link.configure("log")
    try:
        yield link
        pid = link.pid
        await link.bye("succeeded")
        await until(lambda: not pid or not Path(f"/proc/{pid}").exists())
    finally:
        link.close()
        reaper.close()


def worker(root: Path, rank: int = 0, round_: int = 1) -> KeeperClient:
    CLIENTS.append(KeeperClient(str(root / "run" / "k.sock"), rank, rank, round_))
    return CLIENTS[-1]


def index_of(step: int, rank: int, data: bytes, ranks: int, groups: int) -> tuple[ShardIndex, int]:
    size = (len(data),)
    pieces, count = placed([Piece(f"t{rank if groups > 1 else 0}", "uint8", size, (0,), size)] if data else [])
    group = rank if groups > 1 else 0
    index = ShardIndex(
        job="job",
        log="log",
        round=1,
        step=step,
        rank=rank,
        ranks=ranks,
        group=group,
        groups=groups,
        pieces=pieces,
        values='{"rank": ' + str(rank) + "}",
    )
    return index, count


def stage(
    client: KeeperClient,
    step: int,
    data: bytes,
    *,
    rank: int = 0,
    ranks: int = 1,
    groups: int = 1,
    persist: bool = False,
    tensors: bool = True,
) -> bool:
    """Write a shard as a worker does; returns whether the keeper has it."""
    index, count = index_of(step, rank, data, ranks, groups)
    index = msgspec.structs.replace(index, tensors=tensors)
    pair = client.slots(needed(4096, count))
    if pair is None:
        return False
    number = pair.choose()
    pair.slots[number].begin(count)[: len(data)] = data
    pair.slots[number].seal(msgspec.json.encode(index), step, 1, time.monotonic_ns())
    return client.sealed(number, step, persist)


def steps(held: list[dict[str, Any]]) -> list[int]:
    return sorted(each["step"] for each in held)


def test_two_newest_shards_are_held_and_written_on_order(tmp_path: Path) -> None:
    """A shard is written once; the manifest is whole; a second commit changes nothing."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            assert not link.alive, "no worker has asked for it"
            client = worker(tmp_path)
            for step in (1, 2, 3):
                assert await blocking(stage, client, step, bytes([step]) * 100)
            assert steps(await link.held()) == [2, 3]
            written, failed = await link.persist(1, 3, [0])
            assert not failed
            (file,) = [each["file"] for each in written]
            done = await link.commit(1, 3, [file])
            assert verify(Storage(str(tmp_path / "saved")), Path(done["path"]).name) == []
            again = await link.commit(1, 3, [file])
            assert again["path"] == done["path"]
            _, failed = await link.persist(1, 1, [0])
            assert "not in memory any more" in failed[0]["error"]

    run(body())


def test_a_torn_shard_does_not_count(tmp_path: Path) -> None:
    """The writer died while it wrote: the shard before is what a successor finds and reads."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            first = worker(tmp_path)
            for step in (1, 2):
                assert await blocking(stage, first, step, bytes([step]) * 10)
            pair = await blocking(first.slots, 1)
            assert isinstance(pair, StagingPair)
            pair.slots[pair.choose()].begin(10)[:5] = b"torn!"
            first.close()
            second = worker(tmp_path)
            (shard,) = await blocking(second.held)
            assert shard.step == 2
            slot = await blocking(second.read, shard.local_rank, shard.slot)
            assert slot is not None and bytes(slot.data()[:10]) == b"\2" * 10
            second.done(shard.local_rank, shard.slot)
            assert steps(await link.held()) == [2]

    run(body())


def test_a_spare_slot_is_first_written_only_with_memory_for_it(tmp_path: Path) -> None:
    """Otherwise a slot that waits to be written to storage, or the newest shard, gives way."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            client = worker(tmp_path)
            for step in (1, 2):
                assert await blocking(stage, client, step, bytes([step]) * 10)
            pair = await blocking(client.slots, 1)
            assert isinstance(pair, StagingPair) and len(pair.slots) == 3 and len(pair.regular) == 2
            pair.slots[0].pin(QUEUED)
            assert pair.newest == 1 and pair.choose() == 2 == pair.choose(lambda: 1 << 40)
            assert pair.choose(lambda: 0) == 1
            pair.slots[2].begin(1)
            assert pair.choose(lambda: 0) == 2
            assert steps(await link.held()) == [1, 2]

    run(body())


def test_a_killed_keeper_is_replaced_at_the_next_save(tmp_path: Path) -> None:
    """Its memory is lost; the worker is told, and asks the next one."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            client = worker(tmp_path)
            assert await blocking(stage, client, 1, b"x")
            first = link.pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: not link.alive)
            with pytest.raises(Refused, match="no keeper"):
                await link.held()
            while not await blocking(stage, client, 2, b"y"):
                assert client.problem
            assert link.pid != first and steps(await link.held()) == [2]

    run(body())


def test_a_save_does_not_overwrite_what_was_loaded(tmp_path: Path) -> None:
    """If ranks go on from an older step than the newest in memory, that one is overwritten first."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            before = worker(tmp_path)
            assert await blocking(stage, before, 8, b"x") and await blocking(stage, before, 9, b"x")
            before.close()
            after = worker(tmp_path, round_=2)
            loaded = {"step": 8, "source": "memory", "seconds": 0.1, "refused": [], "local_ranks": 1}
            await blocking(after.loaded, loaded)
            assert await blocking(stage, after, 10, b"y")
            assert steps(await link.held()) == [8, 10]

    run(body())


def test_the_successor_of_a_dead_agent_takes_the_keeper_over(tmp_path: Path) -> None:
    """With what it holds; meanwhile the keeper writes it."""

    async def body() -> None:
        reaper = Reaper()
        config = KeeperConfig(job="job", log="", node="node", url=str(tmp_path / "saved"))
        (tmp_path / "run").mkdir(mode=0o700)
        first = KeeperLink(reaper, str(tmp_path / "run" / "k.sock"), config)
        await first.open()
        first.configure("log")
        client = worker(tmp_path)
        assert await blocking(stage, client, 7, b"kept")
        pid = first.pid
        client.close()
        first.close()  # what the kernel does when it dies
        reaper.close()
        await until(lambda: list((tmp_path / "saved").glob("*/manifest.json")) != [])
        async with agent(tmp_path) as second:
            assert (second.pid, second.log) == (pid, "log")
            assert steps(await second.held()) == [7]
            second.configure("log")
            assert second.alive
        assert not Path(f"/proc/{pid}").exists()

    run(body())


def test_a_keeper_with_the_memory_of_another_log_is_replaced(tmp_path: Path) -> None:
    """Its shards are of another job's history."""

    async def body() -> None:
        async with agent(tmp_path, url=False) as link:
            client = worker(tmp_path)
            assert await blocking(stage, client, 7, b"old")
            before = link.pid
            link.configure("another")
            while not (link.alive and await blocking(stage, client, 1, b"new")):
                await blocking(client.connect)  # the next keeper starts with the connection of a worker
            assert link.pid != before and steps(await link.held()) == [1]

    run(body())


def test_too_little_memory_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """The worker learns the need and the limit."""

    async def body() -> None:
        async with agent(tmp_path, memory=64 << 20):
            client = worker(tmp_path)
            assert await blocking(client.slots, 1 << 30) is None
            assert "2.00 GiB" in client.problem and "the limit is 0.06 GiB" in client.problem, client.problem
            assert await blocking(stage, client, 1, b"small")

    run(body())


def test_storage_that_cannot_be_written_keeps_the_memory(tmp_path: Path) -> None:
    """The failure is reported once; the keeper writes again what is in memory, and so does the next save."""

    async def body() -> None:
        (tmp_path / "saved").write_text("a file")
        async with agent(tmp_path) as link:
            failed: list[Any] = []
            persisted: list[Any] = []
            link.events.failed, link.events.persisted = failed.append, persisted.append
            client = worker(tmp_path)
            assert await blocking(lambda: stage(client, 1, b"x", persist=True))
            await until(lambda: bool(failed))
            assert failed[0]["step"] == 1 and failed[0]["error"] and failed[0]["away"]
            assert await blocking(lambda: stage(client, 2, b"y", persist=True))
            assert len(await blocking(client.written, PATIENCE_S)) == 1
            (tmp_path / "saved").unlink()
            await until(lambda: bool(persisted))
            assert persisted[0]["step"] == 2 and steps(await link.held()) == [1, 2]
            assert await blocking(lambda: stage(client, 3, b"z", persist=True))
            assert await blocking(client.written, PATIENCE_S) == [] and len(failed) == 1

    run(body())


def test_what_replaces_an_unwritten_state_is_written_once_it_stays(tmp_path: Path) -> None:
    """The training saved newer steps in memory, and was paused: all ranks have the last one."""

    async def body() -> None:
        (tmp_path / "saved").write_text("a file")
        async with agent(tmp_path) as link:
            failed: list[Any] = []
            persisted: list[Any] = []
            link.events.failed, link.events.persisted = failed.append, persisted.append
            client = worker(tmp_path)
            assert await blocking(lambda: stage(client, 1, b"x", persist=True))
            await until(lambda: bool(failed))
            for step in (2, 3, 4):
                assert await blocking(stage, client, step, b"x")
            (tmp_path / "saved").unlink()
            await until(lambda: bool(persisted))
            assert [each["step"] for each in persisted] == [4]

    run(body())


def test_workers_are_ordered_to_stage(tmp_path: Path) -> None:
    """Each answers with its step or its reason; one that ends instead is an error."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            clients = [worker(tmp_path, rank) for rank in range(3)]
            for rank, client in enumerate(clients):
                assert await blocking(lambda c=client, r=rank: stage(c, 4, b"x", rank=r, ranks=3, groups=3))

            def serve(rank: int, client: KeeperClient) -> None:
                while (order := client.wait_order()) is not None:
                    if rank == 0:
                        client.answer(order, 4, 0)
                    else:
                        client.refuse(order, "an optimizer's step is in progress")

            threads = [threading.Thread(target=serve, args=pair, daemon=True) for pair in enumerate(clients)]
            for thread in threads:
                thread.start()
            answers: list[dict[str, Any]] = []
            while len(answers) < 3:  # the threads connect by themselves
                answers = await link.stage(1)
            busy = {"error": "an optimizer's step is in progress"}
            assert answers == [{"rank": 0, "step": 4}, {"rank": 1, **busy}, {"rank": 2, **busy}]
            for client in clients:
                client.close()
            for thread in threads:
                await blocking(thread.join, PATIENCE_S)
            assert not any(thread.is_alive() for thread in threads)

    run(body())


def test_values_of_other_ranks_are_written_with_the_shard_of_their_group(tmp_path: Path) -> None:
    """Storage has one file of a replica group; no rank loses its random number generators."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            clients = [worker(tmp_path, rank) for rank in range(2)]
            assert await blocking(lambda: stage(clients[0], 5, b"tensors", ranks=2))
            assert await blocking(lambda: stage(clients[1], 5, b"", rank=1, ranks=2, tensors=False))
            written, failed = await link.persist(1, 5, [0])
            assert not failed
            await link.commit(1, 5, [written[0]["file"]])
            (file,) = (tmp_path / "saved").glob("*/shard-*")
            assert b'"others"' in file.read_bytes() and b'\\"rank\\": 1' in file.read_bytes()

    run(body())


def test_a_removed_socket_is_made_again(tmp_path: Path) -> None:
    """Before there is a keeper, while it runs, and after it was killed; at the end it is removed."""
    place = tmp_path / "run" / "k.sock"

    def remove() -> None:
        place.unlink()
        place.parent.rmdir()

    async def body() -> None:
        async with agent(tmp_path) as link:
            remove()
            await until(place.exists)
            first = worker(tmp_path)
            assert await blocking(stage, first, 5, b"x")
            pid = link.pid
            remove()
            await until(place.exists)
            second = worker(tmp_path, 1)
            assert [each.step for each in await blocking(second.held)] == [5]
            assert link.pid == pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda: not Path(f"/proc/{pid}").exists())  # one that is ending closes its files one by one
            assert await blocking(lambda: stage(second, 6, b"y", rank=1))
            assert link.pid not in (0, pid)
            remove()
            await until(place.exists)
        assert not place.exists()

    run(body())


def test_state_without_a_tensor_is_a_checkpoint_too(tmp_path: Path) -> None:
    """The index says that a shard is the state of its group, not the size of its data."""

    async def body() -> None:
        async with agent(tmp_path) as link:
            client = worker(tmp_path)
            assert await blocking(stage, client, 5, b"")
            assert [each["tensors"] for each in await link.held()] == [True]
            written, failed = await link.persist(1, 5, [0])
            assert not failed
            await link.commit(1, 5, [written[0]["file"]])
        assert verify(Storage(str(tmp_path / "saved")), "step-000000005-r1") == []

    run(body())


def test_a_supervisor_that_closes_leaves_the_keeper_alone(tmp_path: Path) -> None:
    """It kills what workers left behind; the keeper outlives the agent, and stays watched until its end."""

    async def body() -> None:
        reaper = Reaper()
        (tmp_path / "run").mkdir(mode=0o700)
        config = KeeperConfig(job="job", log="", node="node", url=str(tmp_path / "saved"))
        link = KeeperLink(reaper, str(tmp_path / "run" / "k.sock"), config)
        await link.open()
        link.configure("log")
        client = worker(tmp_path)
        assert await blocking(stage, client, 1, b"x")
        pid = link.pid
        client.close()
        link.close()
        assert pid in processes.children(os.getpid())
        assert pid not in processes.descendants(os.getpid(), reaper.watched)
        os.kill(pid, signal.SIGTERM)
        await until(lambda: pid not in reaper.watched)
        assert list((tmp_path / "saved").glob("*/manifest.json"))
        reaper.close()

    run(body())
