"""The supervisor towards torchrun, with a made-up torchrun at the other end of the channel and real processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ftcore.errors import UsageError
from ftcore.ids import Round
from ftcore.ports import Launch, WorkerExit
from ftcore.rdzv_etcd import channel
from ftcore.rdzv_etcd.supervisor import TorchrunSupervisor, Ways

PATIENCE_S = 60.0
ENV = {
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "RANK": "2",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "7",
}
WORLD = {"group_rank": 1, "nodes": 2, "base_rank": 2, "size": 4, "store_host": "host", "store_port": 7}


def launch(round_: int = 1) -> Launch:
    return Launch(round=Round(round_), argv=(), module=False, no_python=False, cwd="", envs=(ENV, ENV), log_dirs=())


class Torchrun:
    """The other end: says what torchrun says, with real children as workers."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.workers: list[subprocess.Popen[bytes]] = []
        self.told: list[Any] = []

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

    ways = Ways(
        gave_up=lambda reason, code: torchrun.told.append(("gave up", reason, code)),
        leave=lambda reason: torchrun.told.append(("leave", reason)),
        close=lambda: torchrun.told.append("close"),
        why_no_world=why,
    )
    supervisor = TorchrunSupervisor(ours, 2, ways)
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


def test_a_torchrun_that_is_gone_leaves_no_worker() -> None:
    """When the channel ends, its workers are killed, the node leaves, and nothing can be started or opened."""

    async def body(supervisor: TorchrunSupervisor, torchrun: Torchrun) -> None:
        await started(supervisor, torchrun)
        opening = asyncio.create_task(supervisor.open_store(Round(2), "host"))
        assert await torchrun.hears("open") == 2
        torchrun.end.shutdown(socket.SHUT_RDWR)
        for worker in torchrun.workers:
            assert await asyncio.get_running_loop().run_in_executor(None, worker.wait) == -signal.SIGKILL
        with pytest.raises(UsageError, match="gone"):
            await opening
        with pytest.raises(UsageError, match="no more workers"):
            await supervisor.start(launch(2))
        assert torchrun.told == [("leave", "its torchrun is gone, without a word")]

    run(body)


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
