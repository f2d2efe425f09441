"""Stopping, and processes left by workers: sessions, daemons, children of children."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from supervisor_harness import Node, alive, wait_gone

from ftcore.errors import UsageError
from ftcore.ports import Launch

SLEEPS = "import time; print('up\\n', end=''); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up\\n', end=''); time.sleep(600)"
SAVES = (
    "import signal, sys, time\n"
    "def save(*_):\n    print('saved'); sys.exit(9)\n"
    "signal.signal(signal.SIGTERM, save); print('up\\n', end=''); time.sleep(600)"
)
DAEMON = """
import os, subprocess, sys, time
def daemon(env):
    # Double fork, own session, own environment: nothing ties it to the worker any more.
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if env is None:
                open(f'daemon-{os.environ["RANK"]}-fork', 'w').write(str(os.getpid()))
                time.sleep(600)
            code = 'import os, sys, time; open(sys.argv[1], "w").write(str(os.getpid())); time.sleep(600)'
            name = f'daemon-{os.environ["RANK"]}-exec'
            os.execve(sys.executable, [sys.executable, '-c', code, name], env)
        os._exit(0)
    os.wait()
daemon(None)
daemon({})
child = subprocess.Popen(['sleep', '600'])
open(f'daemon-{os.environ["RANK"]}-child', 'w').write(str(child.pid))
names = [f'daemon-{os.environ["RANK"]}-{kind}' for kind in ('fork', 'exec', 'child')]
while not all(os.path.exists(n) and open(n).read() for n in names):
    time.sleep(0.005)
print('up')
if 'stay' in sys.argv: time.sleep(600)
os._exit(int(os.environ['RANK']))
"""


async def up(node: Node, launch: Launch) -> tuple[int, ...]:
    """Start a launch and wait until every worker has reported."""
    pids, _ = await node.supervisor.start(launch)
    for rank in range(len(pids)):
        await node.says(launch, "up", rank)
    return pids


def daemons(root: Path) -> list[int]:
    """Process ids written by the workers' daemons and children."""
    return [int(path.read_text()) for path in sorted(root.glob("daemon-*"))]


def test_stop_without_workers_returns_at_once(root: Node) -> None:
    """Before a start, and at a second stop."""
    assert root.run(root.supervisor.stop(30.0)) == ()
    root.run(up(root, root.launch(root.script(SLEEPS))))
    assert root.run(root.supervisor.stop(30.0)) == (-15,)
    assert root.run(root.supervisor.stop(30.0)) == ()


def test_a_worker_gets_time_to_save(root: Node) -> None:
    """SIGTERM comes first; a worker that handles it ends with its own code, and its output is kept."""
    launch = root.launch(root.script(SAVES))
    root.run(up(root, launch))
    assert root.run(root.supervisor.stop(30.0)) == (9,)
    assert root.supervisor.tail(0, 100) == "up\nsaved\n"


def test_a_stopped_worker_gets_sigterm(root: Node) -> None:
    """A worker in SIGSTOP gets its time to save, and does not use up the grace period."""
    pids = root.run(up(root, root.launch(root.script(SAVES))))
    os.kill(pids[0], signal.SIGSTOP)
    assert root.run(root.supervisor.stop(600.0)) == (9,)


def test_a_worker_that_ignores_term_is_killed_after_the_grace(root: Node) -> None:
    """SIGKILL follows and determines the code; the other worker does not delay the stop."""
    root.run(up(root, root.launch(root.script(STUBBORN))))
    assert root.run(root.supervisor.stop(0.05)) == (-9,)


def test_a_second_stop_shortens_the_grace(root: Node) -> None:
    """A second call ends the wait of the first one."""
    root.run(up(root, root.launch(root.script(STUBBORN))))

    async def twice() -> tuple[int | None, ...]:
        first = asyncio.ensure_future(root.supervisor.stop(600.0))
        await asyncio.sleep(0)
        assert await root.supervisor.stop(0.0) == ()
        return await first

    assert root.run(twice()) == (-9,)


def test_a_worker_that_had_ended_before_counts_as_none(root: Node) -> None:
    """``exits`` reports its exit; exits caused by ``stop`` are only in its result."""
    source = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(4)\ntime.sleep(600)"
    root.run(root.supervisor.start(root.launch(root.script(source), workers=2)))
    (ended,) = root.run(root.next_exits(1))
    assert (ended.local_rank, ended.exitcode) == (1, 4)
    assert root.run(root.supervisor.stop(30.0)) == (-15, None)
    other = root.run(root.ended(root.launch(root.script("raise SystemExit(8)"))))
    assert other.codes == (8,)  # the stopped worker's end did not come in between


def test_nothing_that_a_stopped_worker_started_remains(root: Node) -> None:
    """Children and daemons in their own sessions, with or without the environment, have ended after ``stop``."""
    pids = root.run(up(root, root.launch(root.script(DAEMON), "stay", workers=2)))
    left = daemons(root.root)
    assert len(left) == 6
    assert all(map(alive, left))
    assert root.run(root.supervisor.stop(30.0)) == (-15, -15)
    assert not any(map(alive, [*left, *pids]))


def test_nothing_that_workers_started_outlives_the_last_of_them(root: Node) -> None:
    """Remaining processes are killed when all workers have ended by themselves, also with code 0."""
    root.run(root.supervisor.start(root.launch(root.script(DAEMON), workers=2)))
    exits = root.run(root.next_exits(2))
    assert [ended.exitcode for ended in exits] == [0, 1]

    async def gone() -> None:
        while any(map(alive, daemons(root.root))):
            await asyncio.sleep(0.005)

    root.run(gone())
    assert len(daemons(root.root)) == 6


def test_a_start_that_is_stopped_says_so(root: Node) -> None:
    """Stop during a start ends it; no worker remains, and the next start works."""

    async def both() -> None:
        starting = asyncio.ensure_future(root.supervisor.start(root.launch(root.script(SLEEPS), workers=8)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await root.supervisor.stop(0.0)
        with pytest.raises(UsageError, match="stopped while they were being started"):
            await starting

    root.run(both())
    assert root.run(root.ended(root.launch(root.script("pass")))).codes == (0,)


def test_a_start_ends_an_older_round_first(root: Node) -> None:
    """Only one round's workers exist at a time."""
    old = root.run(up(root, root.launch(root.script(STUBBORN))))
    assert root.run(root.ended(root.launch(root.script("pass")))).codes == (0,)
    wait_gone(old)


def test_a_worker_killed_from_outside_is_reported_with_its_signal(root: Node) -> None:
    """The exit names round, rank and signal."""
    launch = root.launch(root.script(SLEEPS), workers=2)
    pids = root.run(up(root, launch))
    os.kill(pids[1], signal.SIGKILL)
    (ended,) = root.run(root.next_exits(1))
    assert (ended.round, ended.local_rank, ended.pid, ended.exitcode) == (launch.round, 1, pids[1], -9)
    assert root.run(root.supervisor.stop(30.0)) == (-15, None)
