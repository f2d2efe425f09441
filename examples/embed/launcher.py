"""A custom launcher that embeds ftcore: the launcher runs processes, ftcore provides log, decisions and recovery.

Master and agent run in this process, and the log is in memory; the workers are plain subprocesses. One worker fails at
its first attempt. Run it:  python examples/embed/launcher.py
"""

import asyncio
import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import ftcore

WORKER = textwrap.dedent(
    """
    import os, sys
    rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"worker {rank} of {os.environ['WORLD_SIZE']}, attempt {attempt}", flush=True)
    sys.exit(3 if rank == "1" and attempt == "0" else 0)
    """
)


class Subprocesses:
    """An ``ftcore.Supervisor`` that uses asyncio's subprocesses, each in its own session."""

    def __init__(self) -> None:
        self._workers: list[asyncio.subprocess.Process] = []
        self._ended: asyncio.Queue[ftcore.WorkerExit | None] = asyncio.Queue()
        self._watchers: list[asyncio.Task[None]] = []

    async def start(self, launch: ftcore.Launch) -> tuple[tuple[int, ...], str]:
        self._workers = [
            await asyncio.create_subprocess_exec(
                sys.executable, *launch.argv, env=dict(env), cwd=launch.cwd, start_new_session=True
            )
            for env in launch.envs
        ]
        self._watchers = [
            asyncio.create_task(self._watch(launch, local_rank, worker))
            for local_rank, worker in enumerate(self._workers)
        ]
        return tuple(worker.pid for worker in self._workers), "exec: by the example's own launcher"

    async def _watch(self, launch: ftcore.Launch, local_rank: int, worker: asyncio.subprocess.Process) -> None:
        code = await worker.wait()
        exited = ftcore.WorkerExit(
            round=launch.round, local_rank=local_rank, pid=worker.pid, exitcode=code, mono=time.monotonic_ns()
        )
        self._ended.put_nowait(exited)

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        before = [worker.returncode is not None for worker in self._workers]
        for watcher in self._watchers:
            watcher.cancel()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for worker in self._workers:
                if worker.returncode is None:
                    os.killpg(worker.pid, number)
            waiting = [asyncio.create_task(worker.wait()) for worker in self._workers]
            if waiting:
                await asyncio.wait(waiting, timeout=grace_s)
        codes = tuple(None if was else worker.returncode for was, worker in zip(before, self._workers, strict=True))
        self._workers = []
        return codes

    async def exits(self) -> AsyncIterator[ftcore.WorkerExit]:
        while (ended := await self._ended.get()) is not None:
            yield ended

    def progress(self) -> tuple[ftcore.Progress | None, ...]:
        return tuple(None for _ in self._workers)

    def tail(self, local_rank: int, limit: int) -> str:
        return ""

    def error_file(self, local_rank: int) -> str:
        return os.devnull

    async def open_store(self, round_: int, host: str) -> tuple[str, int]:
        return host, 29500 + round_  # these workers need no store; a launcher for torch opens a TCPStore here

    async def close(self) -> None:
        await self.stop(0.0)
        self._ended.put_nowait(None)


async def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        log = await ftcore.open_log("memory://example", "embedded", create=True)
        master = ftcore.Master(log, listen=f"unix:{place}/master.sock")
        leading = asyncio.create_task(master.run())
        supervisor = Subprocesses()
        config = ftcore.AgentConfig(
            job="embedded",
            node="here",
            slots=2,
            address="127.0.0.1",
            submission=ftcore.submission(ftcore.JobSpec(argv=("-c", WORKER))),
            log_dir=Path(place) / "logs",
            state_dir=Path(place) / "agent",
            env=os.environ,
        )
        outcome = await ftcore.Agent(config, log, supervisor).run()
        await supervisor.close()
        await leading
        async for event in log.read():
            if event.type in ("worker.failed", "incident.opened", "policy.considered", "job.finished"):
                print(f"{event.seq:3} {event.type}")
        await log.close()
    print(f"the job {outcome.outcome}: {outcome.reason}")
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
