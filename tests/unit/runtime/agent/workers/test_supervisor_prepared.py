"""Prepared workers: they do their set-up before their round, and wait where they need their rank."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from supervisor_harness import Node, alive

from ftcore.ports import NO_ROUND, Launch
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.prepared import PrepareOptions
from ftcore.runtime.warm.protocol import DEFAULT_PRELOAD
from ftcore.shm.rounds import OF_ROUND, PREPARED_ENV

SCRIPT = """
import os, time
from pathlib import Path
{before}
print("set up", os.environ["LOCAL_RANK"], "RANK" in dict(os.environ), flush=True)
Path(f"ready.{{os.getpid()}}").touch()
print("rank", {read}, "of", os.environ["WORLD_SIZE"], os.environ.get("FTCORE_NEW"), flush=True)
print("oom", Path("/proc/self/oom_score_adj").read_text(), type(os.environ).__name__, flush=True)
time.sleep(600)
"""


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    made: list[Node] = []
    yield made
    for node in made:
        node.close()


def node_of(
    nodes: list[Node],
    root: Path,
    *,
    beside: bool = False,
    workers: int = 2,
    before: str = "",
    read: str = 'os.environ["RANK"]',
    preload: Sequence[str] = (),
    limit_s: float = 60.0,
    first_steps_s: float = 0.0,
) -> Node:
    """A node that prepares its workers at once."""
    env = {name: text for name, text in os.environ.items() if name not in OF_ROUND}
    envs = tuple({**env, "LOCAL_RANK": str(rank), PREPARED_ENV: "1"} for rank in range(workers))
    launch = Launch(
        round=NO_ROUND,
        argv=("script.py",),
        module=False,
        no_python=False,
        cwd=str(root),
        envs=envs,
        log_dirs=tuple(str(root / "prepared" / str(rank)) for rank in range(workers)),
    )
    made = Node(root, env=env, preload=preload, prepare=PrepareOptions(launch, beside, 0.0, first_steps_s, limit_s))
    made.script(SCRIPT.format(before=before, read=read))
    nodes.append(made)
    return made


def ready(node: Node) -> set[int]:
    """The processes that have done their set-up."""
    return {int(path.suffix[1:]) for path in node.root.glob("ready.*")}


async def prepared(node: Node, count: int) -> set[int]:
    """The processes with a finished set-up, once there are so many, and those without a round wait."""
    while len(ready(node)) < count or any(not each.waits for each in node.supervisor._prepared._workers):
        await asyncio.sleep(0.005)
    return ready(node)


async def printed(node: Node, text: str, local_rank: int = 0) -> None:
    """Wait until a worker has printed exactly a text before its round."""
    path = node.root / "prepared" / str(local_rank) / "stdout.log"
    while not path.exists() or path.read_text() != text:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    "read",
    ['os.environ["RANK"]', 'os.environ.get("RANK")', 'os.getenv("RANK", "none")', '"RANK" in os.environ and 0'],
)
def test_prepared_workers_enter_a_round(tmp_path: Path, nodes: list[Node], read: str) -> None:
    """Whichever way they ask for their rank; output, variables and the kernel's score are those of the round."""
    node = node_of(nodes, tmp_path, read=read)

    async def story() -> None:
        assert await node.supervisor.warmed()
        pids = ready(node)
        assert len(pids) == 2 and node.supervisor.progress() == ()
        assert {Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in pids} == {"1000"}
        launch = node.launch("script.py", workers=2, env={"FTCORE_NEW": "x"})
        found, how = await node.supervisor.start(launch)
        assert ({*found}, how) == (pids, "prepared")
        usual = Path("/proc/self/oom_score_adj").read_text().strip()
        for rank in (0, 1):
            shown = 0 if read.endswith("and 0") else rank
            await node.says(launch, f"rank {shown} of 2 x\noom {usual}\n _Environ\n", rank)
            await printed(node, f"set up {rank} False\n", rank)
        assert await node.supervisor.stop(30.0) == (-15, -15)

    node.run(story())
    assert node.notes == []


def test_a_forked_child_does_not_wait(tmp_path: Path, nodes: list[Node]) -> None:
    """Such as a process of a data loader: only the worker itself enters the round, and a child never takes itself for
    the only process."""
    child = (
        "if not os.fork():\n    try: os.environ.get('RANK')\n    except RuntimeError: print('child', flush=True)\n"
        "    os._exit(0)\nos.wait()\nimport subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"RANK\"])'])"
    )
    node = node_of(nodes, tmp_path, workers=1, before=child)

    async def story() -> None:
        assert await node.supervisor.warmed()
        await printed(node, "child\nnot known before the round\nset up 0 False\n")

    node.run(story())


def test_a_round_that_begins_during_the_set_up_does_not_wait_for_it(tmp_path: Path, nodes: list[Node]) -> None:
    """Its workers are forked, and the ones in their set-up are ended."""
    node = node_of(
        nodes, tmp_path, before="if 'RANK' not in dict(os.environ):\n    print('busy', flush=True)\n    time.sleep(600)"
    )

    async def story() -> None:
        waiting = asyncio.create_task(node.supervisor.warmed())
        for rank in (0, 1):
            await printed(node, "busy\n", rank)
        early = [each.pid for each in node.supervisor._prepared._workers]
        launch = node.launch("script.py", workers=2)
        pids, how = await node.supervisor.start(launch)
        assert how == "fork" and not {*pids} & {*early}
        assert await waiting
        while any(map(alive, early)):
            await asyncio.sleep(0.005)
        await node.says(launch, "rank 1 of 2", 1)

    node.run(story())
    assert node.notes == []


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("raise SystemExit('no dataset')", "worker 0 ended with code 1 before it asked for its rank: no dataset"),
        (
            "if 'RANK' not in dict(os.environ): raise SystemExit",
            "worker 0 ended with code 0 before it asked for its rank",
        ),
    ],
)
def test_a_script_that_ends_before_it_asks_is_not_prepared(
    tmp_path: Path, nodes: list[Node], before: str, why: str
) -> None:
    """One message for the user, no report of an exit; the workers are started in their round."""
    node = node_of(nodes, tmp_path, before=before, workers=1, beside=True)

    async def story() -> None:
        assert await node.supervisor.warmed()
        assert node.notes == [f"workers cannot be prepared: {why}; they are started in their round"]
        _, how = await node.supervisor.start(node.launch("script.py"))
        assert how == "fork"

    node.run(story())
    assert len(node.notes) == 1


def test_a_worker_that_is_killed_in_its_set_up_is_prepared_after_the_next_launch(
    tmp_path: Path, nodes: list[Node]
) -> None:
    """That is no fault of the script: the kernel ends such workers first if memory is short."""
    before = "print(os.getpid(), flush=True)\nwhile not Path('go').exists(): time.sleep(0.005)"
    node = node_of(nodes, tmp_path, workers=1, beside=True, before=before)

    async def story() -> None:
        warmed = asyncio.create_task(node.supervisor.warmed())
        path = node.root / "prepared" / "0" / "stdout.log"
        while not path.exists() or not path.read_text().endswith("\n"):
            await asyncio.sleep(0.005)
        os.kill(int(path.read_text()), signal.SIGKILL)
        await warmed
        (tmp_path / "go").touch()
        _, how = await node.supervisor.start(node.launch("script.py", workers=1))
        assert how == "fork"
        assert len(await prepared(node, 2)) == 2

    node.run(story())
    why = "worker 0 was ended by SIGKILL before it asked for its rank"
    assert node.notes == [f"workers cannot be prepared: {why}; they are started in their round"]


def test_a_process_that_trains_before_it_asks_is_ended(tmp_path: Path, nodes: list[Node]) -> None:
    """It takes itself for the only one, and would replace what the job has saved."""
    train = "import torch\np = torch.nn.Parameter(torch.ones(1))\np.grad = torch.ones(1)\ntorch.optim.SGD([p]).step()"
    node = node_of(nodes, tmp_path, before=train, workers=1, preload=DEFAULT_PRELOAD)

    async def story() -> None:
        assert await node.supervisor.warmed()
        assert ready(node) == set()
        assert len(node.notes) == 1 and "it trains before it has asked for its rank" in node.notes[0]

    node.run(story())


def test_prepared_workers_wait_beside_those_of_a_round(tmp_path: Path, nodes: list[Node]) -> None:
    """They survive the stop of the round, and a restart takes them; the next ones are prepared after it. The kill of a
    waiting one is not reported as a failure, and its rank is forked."""
    node = node_of(nodes, tmp_path, beside=True)

    async def story() -> None:
        first, how = await node.supervisor.start(node.launch("script.py", workers=2))
        assert how == "fork"
        waiting = await prepared(node, 4) - {*first}
        await node.supervisor.stop(0.0)
        assert all(map(alive, waiting))
        launch = node.launch("script.py", workers=2)
        second, how = await node.supervisor.start(launch)
        assert ({*second}, how) == (waiting, "prepared")
        await node.says(launch, "rank 1 of 2", 1)
        third = await prepared(node, 6) - {*first, *second}
        for name in ("1", "1.2"):
            assert (node.root / "prepared" / name / "stdout.log").read_text() == "set up 1 False\n"
        killed = next(each for each in node.supervisor._prepared._workers if each.local_rank == 0).pid
        os.kill(killed, signal.SIGKILL)
        while killed in [each.pid for each in node.supervisor._prepared._workers]:
            await asyncio.sleep(0.005)
        await node.supervisor.stop(0.0)
        again, how = await node.supervisor.start(node.launch("script.py", workers=2))
        assert how == "fork; 1 of 2 prepared"
        assert {again[1]} == third - {killed}
        await prepared(node, 9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                raise AssertionError(await node.next_exits(1))

    node.run(story())
    assert node.notes == []


def test_an_endless_set_up_is_given_up(tmp_path: Path, nodes: list[Node]) -> None:
    """Such as one that waits for other ranks without asking for its own: the node can be used all the same."""
    node = node_of(nodes, tmp_path, before="time.sleep(600)", workers=1, limit_s=0.1)

    async def story() -> None:
        assert await node.supervisor.warmed()
        assert len(node.notes) == 1 and "worker 0 did not ask for its rank within" in node.notes[0]
        while node.supervisor._prepared._workers:
            await asyncio.sleep(0.005)

    node.run(story())


def test_a_stopped_process_enters_no_round(tmp_path: Path, nodes: list[Node]) -> None:
    """It would not answer: its rank is forked."""
    node = node_of(nodes, tmp_path)

    async def story() -> None:
        assert await node.supervisor.warmed()
        stopped = next(each for each in node.supervisor._prepared._workers if each.local_rank == 0).pid
        os.kill(stopped, signal.SIGSTOP)
        while not processes.is_stopped(stopped):
            await asyncio.sleep(0.001)
        pids, how = await node.supervisor.start(node.launch("script.py", workers=2))
        assert how == "fork; 1 of 2 prepared" and stopped not in pids

    node.run(story())


def test_a_round_takes_one_worker_while_another_one_is_in_its_set_up(tmp_path: Path, nodes: list[Node]) -> None:
    """The rank that was taken is prepared again without another launch."""
    slow = "if os.environ['LOCAL_RANK'] == '1' and 'RANK' not in dict(os.environ):\n"
    slow += "    while not Path('go').exists(): time.sleep(0.005)"
    node = node_of(nodes, tmp_path, beside=True, before=slow)

    async def story() -> None:
        first, _ = await node.supervisor.start(node.launch("script.py", workers=2))
        while not any(each.waits for each in node.supervisor._prepared._workers):
            await asyncio.sleep(0.005)
        second, how = await node.supervisor.start(node.launch("script.py", workers=2))
        assert how == "fork; 1 of 2 prepared" and not {*first} & {*second}
        (tmp_path / "go").touch()
        while [each.waits for each in node.supervisor._prepared._workers] != [True, True]:
            await asyncio.sleep(0.005)
        await node.supervisor.stop(0.0)
        third, how = await node.supervisor.start(node.launch("script.py", workers=2))
        assert how == "prepared" and not {*second} & {*third}

    node.run(story())
    assert node.notes == []


def test_the_set_up_of_running_workers_comes_first(tmp_path: Path, nodes: list[Node]) -> None:
    """No worker is prepared before each running one has completed a step."""
    steps = "from ftcore.worker._progress import progress\nif 'RANK' in dict(os.environ):\n"
    steps += "    while not Path('go').exists(): time.sleep(0.005)\n    progress().report(1, None, None)"
    node = node_of(nodes, tmp_path, beside=True, before=steps, first_steps_s=60.0)

    async def story() -> None:
        launch = node.launch("script.py", workers=2)
        await node.supervisor.start(launch)
        await asyncio.sleep(0.2)
        assert ready(node) == set() and not node.supervisor._prepared._workers
        (tmp_path / "go").touch()
        assert len(await prepared(node, 4)) == 4

    node.run(story())


def test_a_worker_that_dies_while_a_round_begins_is_one_of_that_round(
    tmp_path: Path, nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is reported, so that the round is not waited for."""
    node = node_of(nodes, tmp_path)

    async def story() -> None:
        assert await node.supervisor.warmed()
        pids = ready(node)
        take = node.supervisor._prepared.choose

        def choose(*args: Any) -> Any:
            chosen = take(*args)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            while any(map(alive, pids)):
                time.sleep(0.001)
            return chosen

        monkeypatch.setattr(node.supervisor._prepared, "choose", choose)
        found, _ = await node.supervisor.start(node.launch("script.py", workers=2))
        assert [each.exitcode for each in await node.next_exits(2)] == [-9, -9]
        assert {*found} == pids

    node.run(story())
