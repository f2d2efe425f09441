"""The supervisor towards torchrun, with a made-up torchrun at the other end of the channel and real processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ftcore.errors import UsageError
from ftcore.ids import Round
from ftcore.ports import Launch, WorkerExit
from ftcore.rdzv_etcd import channel
from ftcore.rdzv_etcd.orphans import MARK, Children
from ftcore.rdzv_etcd.supervisor import AgentCallbacks, TorchrunSupervisor

PATIENCE_S = 60.0
ENV = {
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "ROLE_RANK": "1",
    "ROLE_WORLD_SIZE": "3",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "7",
}
WORLD = {
    "group_rank": 1,
    "nodes": 2,
    "base_rank": 2,
    "size": 4,
    "base_role_rank": 1,
    "role_size": 3,
    "store_host": "host",
    "store_port": 7,
}


def launch(round_: int = 1) -> Launch:
    return Launch(round=Round(round_), argv=(), module=False, no_python=False, cwd="", envs=(ENV, ENV), log_dirs=())


class Torchrun:
    """The other end: says what torchrun says, with real children as workers."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.workers: list[subprocess.Popen[bytes]] = []
        self.told: list[Any] = []
        self.mark = ""

    async def hears(self, word: str) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await asyncio.get_running_loop().run_in_executor(None, channel.receive, self.end)
                assert message is not None
                if word in message:
                    return message[word]

    def says(self, **message: Any) -> None:
        assert channel.send(self.end, message)

    def runs(self, count: int = 2, error_file: str = "") -> None:
        env = {**os.environ, "TORCHELASTIC_ERROR_FILE": error_file}
        code = "import sys; sys.exit(int(sys.stdin.readline()))"
        self.workers = [
            subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True, env=env)
            for _ in range(count)
        ]
        for worker in self.workers:
            while not Path(f"/proc/{worker.pid}/environ").read_bytes():  # empty while the kernel sets up the program
                time.sleep(0.001)
        self.says(running={rank: worker.pid for rank, worker in enumerate(self.workers)})

    def ends(self, rank: int, code: int) -> None:
        stdin = self.workers[rank].stdin
        assert stdin is not None
        stdin.write(f"{code}\n".encode())
        stdin.close()

    def failure(self, rank: int, code: int) -> dict[str, Any]:
        return {"local_rank": rank, "pid": self.workers[rank].pid, "exitcode": code, "error_file": "/e/error.json"}

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            if worker.stdin is not None and not worker.stdin.closed:
                worker.stdin.close()
        self.end.close()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[TorchrunSupervisor, Torchrun]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    torchrun = Torchrun(theirs)

    async def why() -> str:
        return "too few"

    callbacks = AgentCallbacks(
        gave_up=lambda reason, code: torchrun.told.append(("gave up", reason, code)),
        leave=lambda reason: torchrun.told.append(("leave", reason)),
        lost=lambda reason: torchrun.told.append(("lost", reason)),
        close=lambda: torchrun.told.append("close"),
        why_no_world=why,
    )
    supervisor = TorchrunSupervisor(ours, 2, callbacks, Children(os.getpid()))
    try:
        yield supervisor, torchrun
    finally:
        await supervisor.close()
        torchrun.close()
        ours.close()


def run(body: Callable[[TorchrunSupervisor, Torchrun], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), pair() as (supervisor, torchrun):
            await body(supervisor, torchrun)

    asyncio.run(main())


async def started(supervisor: TorchrunSupervisor, torchrun: Torchrun, **how: Any) -> AsyncIterator[WorkerExit]:
    """Bring a round up; returns the stream of ends."""
    torchrun.says(next=[])
    starting = asyncio.create_task(supervisor.start(launch()))
    world = await torchrun.hears("world")
    torchrun.mark = world["env"].pop(MARK)
    withheld = {"FTCORE_RESUME_STEP", "FTCORE_SKIP", "FTCORE_TOKEN", "FTCORE_ETCD_PASSWORD"}
    assert world == {"round": 1, **WORLD, "env": dict.fromkeys(withheld)}
    torchrun.runs(**how)
    assert await starting == (tuple(worker.pid for worker in torchrun.workers), "torchrun")
    return supervisor.exits()


def test_a_failure_is_told_before_torchrun_has_noticed(tmp_path: Path) -> None:
    """The code of a worker that torchrun has not collected is read at once; its error file is known."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        exits = await started(supervisor, torchrun, error_file=str(tmp_path / "error.json"))
        (tmp_path / "stderr.log").write_text("last words\n")
        torchrun.ends(1, 3)
        ended = await anext(exits)
        assert (ended.local_rank, ended.exitcode, ended.round) == (1, 3, 1)
        assert supervisor.error_file(1) == str(tmp_path / "error.json")
        assert supervisor.tail(1, 100) == "last words\n"
        torchrun.workers[0].terminate()  # torchrun winds up: nobody's news
        torchrun.workers[0].wait()
        torchrun.says(next=[torchrun.failure(1, 3), torchrun.failure(0, -15)])
        assert (await supervisor.stop(5.0))[1] is None
        torchrun.says(done=1)
        await asyncio.wait_for(_until(lambda: ("leave", "torchrun has ended") in torchrun.told, exits), PATIENCE_S)

    run(body)


async def _until(true: Callable[[], bool], exits: AsyncIterator[WorkerExit]) -> None:
    waiting = asyncio.ensure_future(anext(exits))
    while not true():
        assert not waiting.done(), waiting.result()
        await asyncio.sleep(0.01)
    waiting.cancel()


def test_what_torchrun_collected_first_it_tells(tmp_path: Path) -> None:
    """A worker that is gone without a trace ended as torchrun says."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        exits = await started(supervisor, torchrun)
        torchrun.ends(0, 0)
        torchrun.workers[0].wait()
        torchrun.says(next=[torchrun.failure(1, 9)])
        ended = await anext(exits)
        assert (ended.local_rank, ended.exitcode) == (1, 9)
        assert supervisor.error_file(1) == "/e/error.json" or supervisor.error_file(1) == ""

    run(body)


def test_success_is_torchruns_word(tmp_path: Path) -> None:
    """Workers that ended with 0 are told of when torchrun says that it is done, all at once."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        exits = await started(supervisor, torchrun)
        torchrun.ends(0, 0)
        torchrun.ends(1, 0)
        torchrun.says(done=1)
        assert [(await anext(exits)).exitcode for _ in range(2)] == [0, 0]

    run(body)


def test_stop_asks_torchrun_back_and_kills_after_the_grace() -> None:
    """Torchrun is asked to come back; workers that outlive the grace are killed, and then nobody waits for it."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        await started(supervisor, torchrun)
        stopping = asyncio.create_task(supervisor.stop(60.0))
        await torchrun.hears("restart")
        assert not stopping.done()
        again = asyncio.create_task(supervisor.stop(0.0))
        assert await stopping == (-signal.SIGKILL, -signal.SIGKILL)
        assert await again == ()

    run(body)


def test_stop_returns_the_codes_of_workers_whose_end_it_sees_first() -> None:
    """Workers that die unseen between two turns of the event loop: their codes are read, not left out."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        await started(supervisor, torchrun)
        for worker in torchrun.workers:
            worker.kill()
            os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert await supervisor.stop(0.0) == (-signal.SIGKILL, -signal.SIGKILL)

    run(body)


def test_a_torchrun_that_is_gone_leaves_no_worker() -> None:
    """When the channel ends, its workers are killed, and the node is lost; nothing else is said of it."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        await started(supervisor, torchrun)
        opening = asyncio.create_task(supervisor.open_store(Round(2), "host"))
        assert await torchrun.hears("open") == 2
        torchrun.end.shutdown(socket.SHUT_RDWR)
        for worker in torchrun.workers:
            assert await asyncio.get_running_loop().run_in_executor(None, worker.wait) == -signal.SIGKILL
        await supervisor.stop(0.0)
        with pytest.raises(UsageError, match="no more workers"):
            await supervisor.start(launch(2))
        assert torchrun.told == [("lost", "its torchrun died without a message")]
        assert not opening.done()
        opening.cancel()

    run(body)


def test_workers_that_torchrun_has_not_named_are_found() -> None:
    """A torchrun dies before its first look: what has the round's mark is killed, and so is what it was about to
    start; the start stays unanswered, and a stop is answered only when nothing is left. Other launches live on."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        torchrun.says(next=[])
        starting = asyncio.create_task(supervisor.start(launch()))
        mark = (await torchrun.hears("world"))["env"][MARK]
        orphans = [spawn({MARK: mark}), spawn({MARK: mark})]
        unborn = os.fork()
        if unborn == 0:
            signal.pause()
        other = spawn({MARK: mark.replace(".1", ".2")})
        try:
            torchrun.end.shutdown(socket.SHUT_RDWR)
            await supervisor.stop(5.0)
            assert [orphan.wait() for orphan in orphans] == [-signal.SIGKILL] * 2
            assert os.waitstatus_to_exitcode(os.waitpid(unborn, 0)[1]) == -signal.SIGKILL
            assert other.poll() is None
        finally:
            for child in (*orphans, other):
                child.kill()
                child.wait()
        assert torchrun.told == [("lost", "its torchrun died without a message")]
        assert not starting.done()
        starting.cancel()

    run(body)


def test_a_torchrun_that_hangs_before_its_first_look() -> None:
    """A stop whose grace is over kills the workers that torchrun has not named, and does not wait for it."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        torchrun.says(next=[])
        starting = asyncio.create_task(supervisor.start(launch()))
        mark = (await torchrun.hears("world"))["env"][MARK]
        orphan = spawn({MARK: mark})
        starting.cancel()
        assert await supervisor.stop(0.0) == ()
        assert orphan.wait() == -signal.SIGKILL

    run(body)


def spawn(env: dict[str, str]) -> "subprocess.Popen[bytes]":
    """A process that waits for its end, in a session of its own."""
    code = "import signal; print(flush=True); signal.pause()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, **env}, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    return child


def test_a_store_is_opened_and_a_world_refused_by_torchrun() -> None:
    """Answers of torchrun become the port's answers: a store's port, an error, a world that cannot be entered."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        opening = asyncio.create_task(supervisor.open_store(Round(1), "host"))
        await torchrun.hears("open")
        torchrun.says(store=1, port=99)
        assert await opening == ("host", 99)
        opening = asyncio.create_task(supervisor.open_store(Round(1), "host"))
        await torchrun.hears("open")
        torchrun.says(store=1, error="no such host")
        with pytest.raises(UsageError, match="no such host"):
            await opening
        torchrun.says(next=[])
        starting = asyncio.create_task(supervisor.start(launch()))
        await torchrun.hears("world")
        torchrun.says(unusable="the store is not reached")
        with pytest.raises(UsageError, match="not reached"):
            await starting
        torchrun.says(expired=1)
        assert await torchrun.hears("timeout") == "too few"

    run(body)


def test_giving_up_follows_the_failures() -> None:
    """The last failures are told first, then that torchrun gives up."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        exits = await started(supervisor, torchrun)
        torchrun.says(gave_up="no restarts", failures=[torchrun.failure(0, 4)])
        assert (await anext(exits)).exitcode == 4
        await asyncio.wait_for(_until(lambda: ("gave up", "no restarts", 1) in torchrun.told, exits), PATIENCE_S)

    run(body)
