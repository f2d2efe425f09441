"""Parking: workers leave their round and enter the next one in the same processes."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_harness import Node, alive

from ftcore.ports import Launch
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.parking import WorkerFault
from ftcore.shm.boundary import PARKS, RETRIES

WAITS = """
import os, time
from ftcore.worker import _rounds
from ftcore.worker._progress import progress

progress().boundary_words.can({able})
link = _rounds.open_link()
print("begins", os.environ["RANK"], os.environ["ROUND"], flush=True)
while True:
    order = link.wait_order()
    if order is None:
        break
    if isinstance(order, _rounds.NextRound):
        _rounds.become(order)
        link.entered()
        print("enters", os.environ["RANK"], os.environ["ROUND"], flush=True)
        continue
    without, number = order
    while progress().boundary_words.must_wait(9):
        time.sleep(0.001)
    if os.environ["RANK"] not in {stays}:
        link.out()
        link.report("collective", 4, "a message", norm=2.0)
        link.left(number)
    print("left", without, flush=True)
"""


@pytest.fixture
def faults() -> list[WorkerFault]:
    """What workers have noticed."""
    return []


@pytest.fixture
def node(tmp_path: Path, faults: list[WorkerFault]) -> Iterator[Node]:
    """A node with a supervisor of its own."""
    made = Node(tmp_path, on_fault=faults.append)
    yield made
    made.close()


def _script(node: Node, stays: tuple[str, ...] = (), able: int = RETRIES | PARKS) -> str:
    return node.script(WAITS.replace("{able}", str(able)).replace("{stays}", repr(stays)))


async def _two(node: Node, name: str) -> tuple[Launch, tuple[int, ...]]:
    """Start two workers; returns their launch and processes once both wait for orders."""
    launch = node.launch(name, workers=2, env={"ROUND": "1"})
    pids, _ = await node.supervisor.start(launch)
    for rank in (0, 1):
        await node.says(launch, f"begins {rank} 1", rank)
    return launch, pids


def test_workers_enter_the_next_round_as_they_are(node: Node, faults: list[WorkerFault]) -> None:
    """Same processes; environment, files of the output and page are those of the new round."""
    name = _script(node)

    async def story() -> None:
        first, pids = await _two(node, name)
        assert await node.supervisor.park(60.0) == (0, 1)
        assert [(each.kind, each.step, each.message) for each in faults] == [("collective", 4, "a message")] * 2
        pages = node.supervisor.boundaries()
        second = node.launch(name, workers=2, env={"ROUND": "2", "FTCORE_NEW": "x"})
        assert await node.supervisor.start(second) == (pids, "parked")
        for rank in (0, 1):
            await node.says(second, f"enters {rank} 1", rank)  # ROUND is the script's own
            assert "enters" not in (Path(first.log_dirs[rank]) / "stdout.log").read_text()
        assert all(new is not old for new, old in zip(node.supervisor.boundaries(), pages, strict=True))
        assert await node.supervisor.stop(30.0) == (-15, -15)

    node.run(story())


def test_a_dead_worker_is_started_anew_beside_those_that_wait(node: Node) -> None:
    """Only the missing rank is a new process, and the end of the old one is reported once."""
    name = _script(node)

    async def story() -> None:
        _, pids = await _two(node, name)
        os.kill(pids[1], signal.SIGKILL)
        assert [ended.exitcode for ended in await node.next_exits(1)] == [-9]
        assert await node.supervisor.park(60.0) == (0,)
        second = node.launch(name, workers=2, env={"ROUND": "2"})
        again, how = await node.supervisor.start(second)
        assert again[0] == pids[0]
        assert again[1] != pids[1]
        assert how == "fork; 1 of 2 parked"
        await node.says(second, "begins 1 2", 1)
        await node.supervisor.stop(30.0)
        assert not any(map(alive, again))

    node.run(story())


def test_a_worker_that_does_not_leave_is_killed_without_a_report(node: Node) -> None:
    """The others wait on."""
    name = _script(node, stays=("0",))

    async def story() -> None:
        _, pids = await _two(node, name)
        assert await node.supervisor.park(0.5) == (1,)
        assert not alive(pids[0])
        os.kill(pids[1], signal.SIGKILL)
        assert [ended.local_rank for ended in await node.next_exits(1)] == [1]

    node.run(story())


def test_a_script_that_cannot_go_on_beside_a_new_process_is_ended(node: Node) -> None:
    """One rank does not leave: the others would make their groups without the process in its place."""
    name = _script(node, stays=("0",), able=RETRIES)

    async def story() -> None:
        _, pids = await _two(node, name)
        assert await node.supervisor.park(0.5) == ()
        assert not any(map(alive, pids))

    node.run(story())


def test_a_paused_worker_leaves(node: Node) -> None:
    """It waits for the end of a pause that nobody will order any more."""
    name = _script(node)

    async def story() -> None:
        first, _ = await _two(node, name)
        for orders in node.supervisor.boundaries():
            assert orders is not None
            orders.stop_at(3)
        assert await node.supervisor.park(60.0) == (0, 1)
        await node.says(first, "left []")

    node.run(story())


def test_a_stopped_process_is_not_waited_for(node: Node) -> None:
    """A signal has stopped it: it does nothing any more."""
    name = _script(node)

    async def story() -> None:
        _, pids = await _two(node, name)
        os.kill(pids[0], signal.SIGSTOP)
        while not processes.is_stopped(pids[0]):
            await asyncio.sleep(0.001)
        assert await node.supervisor.park(1e6) == (1,)
        assert not alive(pids[0])

    node.run(story())


def test_a_script_that_cannot_leave_is_not_waited_for(node: Node) -> None:
    """It has published no such ability: nothing is left that could enter another round."""
    name = _script(node, able=0)

    async def story() -> None:
        first = node.launch(name, env={"ROUND": "1"})
        pids, _ = await node.supervisor.start(first)
        await node.says(first, "begins 0")
        assert await node.supervisor.park(1e6) == ()
        assert not alive(pids[0])
        second = node.launch(name, env={"ROUND": "2"})
        again, how = await node.supervisor.start(second)
        assert again != pids
        assert how == "fork"

    node.run(story())


def test_another_place_is_no_place_for_a_process_that_waits(node: Node) -> None:
    """A process has read its rank and the number of ranks: in a world of another size, all are started anew."""
    name = _script(node)

    async def story() -> None:
        _, pids = await _two(node, name)
        assert await node.supervisor.park(60.0) == (0, 1)
        again, how = await node.supervisor.start(node.launch(name, workers=1, env={"ROUND": "2"}))
        assert again[0] not in pids
        assert how == "fork"
        assert not any(map(alive, pids))

    node.run(story())


def test_a_stop_ends_what_is_being_parked(node: Node) -> None:
    """A later policy does not wait for the workers of an earlier one."""
    name = _script(node, stays=("0",))

    async def story() -> None:
        first = node.launch(name, env={"ROUND": "1"})
        await node.supervisor.start(first)
        await node.says(first, "begins 0")
        parking = asyncio.create_task(node.supervisor.park(1e6))
        await node.says(first, "left")
        assert await node.supervisor.stop(30.0) == (-15,)
        assert await parking == ()

    node.run(story())
