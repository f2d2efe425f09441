"""SIGKILL of each process of a node: the others survive or end as intended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from supervisor_harness import Node, alive, wait_gone

SLEEPS = "import time; print('up'); time.sleep(600)"
FAMILY = """
import os, subprocess, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        open(f'daemon-{os.environ["RANK"]}-fork', 'w').write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
child = subprocess.Popen(['sleep', '600'])
open(f'daemon-{os.environ["RANK"]}-child', 'w').write(str(child.pid))
lone = subprocess.Popen(['sleep', '600'], env={'PATH': os.environ['PATH']})
open(f'daemon-{os.environ["RANK"]}-lone', 'w').write(str(lone.pid))
while not os.path.exists(f'daemon-{os.environ["RANK"]}-fork'): time.sleep(0.005)
print('up')
time.sleep(600)
"""


def killed(pid: int) -> None:
    """Kill a process and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    wait_gone([pid])


async def changes(read: object, old: int) -> int:
    """Wait until the process id that ``read`` returns is a new one."""
    while (pid := read()) in (0, old):  # type: ignore[operator]
        await asyncio.sleep(0.005)
    return int(pid)


@pytest.mark.parametrize("order", [("agent",), ("guard", "agent"), ("warm", "agent"), ("worker", "agent")])
def test_nothing_survives_a_killed_agent(tmp_path: Path, order: tuple[str, ...]) -> None:
    """Workers, their children and daemons, warm process, guard and store host end, in any order of deaths."""
    (tmp_path / "family.py").write_text(FAMILY)
    main = Path(__file__).with_name("agent_main.py")
    with subprocess.Popen(
        [sys.executable, str(main), str(tmp_path), "family.py"], stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout is not None
        pids = json.loads(agent.stdout.readline())
        family = [int(path.read_text()) for path in tmp_path.glob("daemon-*")]
        assert len(family) == 6
        assert all(map(alive, [*family, *pids["workers"], pids["warm"], pids["guard"]]))
        victims = {"agent": agent.pid, "guard": pids["guard"], "warm": pids["warm"], "worker": pids["workers"][0]}
        children = _children(agent.pid)
        for name in order:
            os.kill(victims[name], signal.SIGKILL)
            while name == "guard" and not set(_guards(agent.pid)) - {victims[name]}:
                time.sleep(0.005)
        agent.wait()
        wait_gone([*family, *pids["workers"], *children])


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _guards(agent: int) -> list[int]:
    """The agent's children that run the guard's program."""
    return [pid for pid in _children(agent) if b"_guard.py" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has ended since the list was read
        return b""


def test_a_killed_guard_is_restarted(root: Node) -> None:
    """It is restarted soon; workers are not affected."""
    launch = root.launch(root.script(SLEEPS))

    async def scene() -> tuple[int | None, ...]:
        await root.supervisor.start(launch)
        guard = root.supervisor._guard
        for _ in range(3):
            old = guard.pid
            os.kill(old, signal.SIGKILL)
            await changes(lambda: guard.pid, old)
        return await root.supervisor.stop(30.0)

    assert root.run(scene()) == (-15,)


def test_workers_survive_the_death_of_the_warm_process(root: Node) -> None:
    """They continue, their exits are reported, and the next launch forks from a new one."""
    launch = root.launch(root.script("import sys; print('up'); sys.stdin.readline(); raise SystemExit(5)"))
    reads, writes = os.pipe()
    os.close(writes)
    os.close(reads)

    async def scene() -> None:
        (worker,), _ = await root.supervisor.start(launch)
        warm = root.supervisor._warm
        old = warm.pid
        os.kill(old, signal.SIGKILL)
        await changes(lambda: warm.pid, old)
        (ended,) = await root.next_exits(1)
        assert (ended.pid, ended.exitcode) == (worker, 5)
        await root.supervisor.stop(0.0)
        assert (await root.ended(root.launch(root.script("pass", "next.py")))).how == "fork"

    root.run(scene())


def test_a_launch_survives_the_death_of_the_warm_process(root: Node) -> None:
    """Killed before, during and after a fork: each launch runs all of its workers exactly once."""
    script = root.script("import os; open('ran', 'a').write('x'); print('up')")

    async def scene(delay_s: float) -> None:
        (root.root / "ran").unlink(missing_ok=True)
        warm = root.supervisor._warm
        starting = asyncio.ensure_future(root.ended(root.launch(script, workers=6)))
        await asyncio.sleep(delay_s)  # a moment of no particular kind: idle, forking, handing over, running
        os.kill(warm.pid, signal.SIGKILL)
        ended = await starting
        assert ended.codes == (0,) * 6
        assert (root.root / "ran").read_text() == "x" * 6

    for half_milliseconds in range(24):
        root.run(scene(half_milliseconds / 2000))


def test_a_parked_worker_that_is_killed_is_replaced(root: Node) -> None:
    """A launch never gets a dead worker."""

    async def scene() -> None:
        warm = root.supervisor._warm
        await warm._park()
        for parked in list(warm._parked):
            killed(parked.pid)
        assert (await root.ended(root.launch(root.script("pass"), workers=2))).codes == (0, 0)

    root.run(scene())


def test_a_stopped_warm_process_is_restarted(root: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging warm process is killed and restarted; the launch continues."""
    monkeypatch.setattr("ftcore.runtime.agent.workers.warm_link.PARK_TIMEOUT_S", 1.0)

    async def scene() -> None:
        os.kill(root.supervisor._warm.pid, signal.SIGSTOP)
        assert (await root.ended(root.launch(root.script("pass"), workers=6))).codes == (0,) * 6

    root.run(scene())
    monkeypatch.undo()
