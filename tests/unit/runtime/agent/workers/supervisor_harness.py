"""A supervisor with real processes for tests: one event loop per node, scripts written by the tests."""

import asyncio
import itertools
import os
import select
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs

from ftcore.ids import Round
from ftcore.ports import Launch, WorkerExit
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.output import Output
from ftcore.runtime.agent.workers.supervisor import LocalSupervisor

T = TypeVar("T")
PATIENCE_S = 60.0
"""How long a test waits for what must happen; no test says how soon."""


@attrs.frozen
class Ended:
    """A launch that ended by itself."""

    codes: tuple[int, ...]
    how: str
    stdout: str
    stderr: str
    log_dir: Path


class Node:
    """One supervisor with its own event loop; closed by ``close``."""

    def __init__(self, root: Path, *, env: Mapping[str, str] | None = None, **options: Any) -> None:
        self.root = root
        self.env = dict(os.environ if env is None else env)
        self.notes: list[str] = []
        self.lost: list[int] = []
        self._rounds = itertools.count(1)
        self._runner = asyncio.Runner()
        self._console = os.open(os.devnull, os.O_WRONLY)
        options.setdefault("preload", ())
        options.setdefault("output", Output(stdout=self._console, stderr=self._console))
        self.before = set(processes.children(os.getpid()))
        self.supervisor = self._runner.run(self._make(options))
        self.exits = self.supervisor.exits()

    async def _make(self, options: dict[str, Any]) -> LocalSupervisor:
        return LocalSupervisor(env=self.env, on_note=self.notes.append, on_store_lost=self.lost.append, **options)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the node's loop."""
        return self._runner.run(asyncio.wait_for(work, PATIENCE_S))

    def close(self) -> None:
        """Close the supervisor; no process that it started may remain."""
        self.run(self.supervisor.close())
        self._runner.close()
        os.close(self._console)
        assert set(processes.children(os.getpid())) <= self.before

    def script(self, source: str, name: str = "script.py") -> str:
        """Write a script into the node's directory."""
        (self.root / name).write_text(source)
        return name

    def next_round(self) -> Round:
        """A round number higher than all earlier ones: stores of older rounds are closed."""
        return Round(next(self._rounds))

    def launch(self, *argv: str, workers: int = 1, env: Mapping[str, str] | None = None, **changes: Any) -> Launch:
        """A launch in the node's directory; each worker knows its rank."""
        round_ = self.next_round()
        envs = tuple(
            {**self.env, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(workers), **(env or {})}
            for rank in range(workers)
        )
        dirs = tuple(str(self.root / "logs" / str(round_) / str(rank)) for rank in range(workers))
        given: dict[str, Any] = {"module": False, "no_python": False, "cwd": str(self.root), **changes}
        return Launch(round=round_, argv=argv, envs=envs, log_dirs=dirs, **given)

    async def ended(self, launch: Launch) -> Ended:
        """Start a launch and wait until all its workers ended by themselves."""
        pids, how = await self.supervisor.start(launch)
        exits = await self.next_exits(len(pids))
        assert [ended.pid for ended in exits] == list(pids)
        await self.supervisor.stop(0.0)
        logs = Path(launch.log_dirs[0])
        return Ended(
            tuple(ended.exitcode for ended in exits),
            how,
            (logs / "stdout.log").read_text(errors="replace"),
            (logs / "stderr.log").read_text(errors="replace"),
            logs,
        )

    async def next_exits(self, count: int) -> Sequence[WorkerExit]:
        """The next ``count`` exits, by local rank."""
        found = [await anext(self.exits) for _ in range(count)]
        return sorted(found, key=lambda ended: ended.local_rank)

    async def says(self, launch: Launch, text: str, local_rank: int = 0) -> None:
        """Wait until a worker has printed a text."""
        path = Path(launch.log_dirs[local_rank]) / "stdout.log"
        while not path.exists() or text not in path.read_text(errors="replace"):
            await asyncio.sleep(0.005)


def wait_gone(pids: Sequence[int]) -> None:
    """Wait until processes that are not our children have ended."""
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(PATIENCE_S * 1000), f"process {pid} does not end"
        finally:
            os.close(fd)


def alive(pid: int) -> bool:
    """Whether a process lives (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
