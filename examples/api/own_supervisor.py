"""A supervisor of your own.

Agent and master share one process. The supervisor starts one program per worker. Each worker reports its steps on a
page, which the supervisor reads. [asyncio_launcher.py](../../../examples/embed/asyncio_launcher.py) is a complete
launcher.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import ftcore

SCRIPT = """
import os
from ftcore.worker import report
for step in range(1, 4):
    report(step, loss=1 / step)
print("rank", os.environ["RANK"], "has done", step, "steps", flush=True)
"""


class Programs:
    """Each worker is a program with the output of this process."""

    def __init__(self) -> None:
        self.workers: list[asyncio.subprocess.Process] = []
        self.pages: list[ftcore.WorkerPage] = []
        self.ended: asyncio.Queue[ftcore.WorkerExit | None] = asyncio.Queue()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self, launch: ftcore.Launch) -> tuple[tuple[int, ...], str]:
        await self.close_pages()
        for env in launch.envs:
            page = ftcore.WorkerPage()
            self.pages.append(page)
            argv, variables = [sys.executable, *launch.argv], {**env, **page.env}
            self.workers.append(await asyncio.create_subprocess_exec(*argv, env=variables, pass_fds=(page.fd,)))
            page.release_fd()
        self.tasks = [asyncio.create_task(self.watch(launch, rank)) for rank in range(len(launch.envs))]
        return tuple(worker.pid for worker in self.workers), "exec: a program of its own"

    async def watch(self, launch: ftcore.Launch, rank: int) -> None:
        worker = self.workers[rank]
        code = await worker.wait()
        now = time.monotonic_ns()
        exited = ftcore.WorkerExit(round=launch.round, local_rank=rank, pid=worker.pid, exitcode=code, mono=now)
        self.ended.put_nowait(exited)

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        for task in self.tasks:
            task.cancel()
        before = [worker.returncode is not None for worker in self.workers]
        for number in (signal.SIGTERM, signal.SIGKILL):
            living = [worker for worker in self.workers if worker.returncode is None]
            for worker in living:
                worker.send_signal(number)
            if living:
                limit_s = grace_s if number == signal.SIGTERM else None  # nothing survives SIGKILL
                await asyncio.wait([asyncio.create_task(worker.wait()) for worker in living], timeout=limit_s)
        codes = tuple(None if was else each.returncode for was, each in zip(before, self.workers, strict=True))
        self.workers = []
        return codes

    async def exits(self) -> AsyncIterator[ftcore.WorkerExit]:
        while (exited := await self.ended.get()) is not None:
            yield exited

    def progress(self) -> tuple[ftcore.Progress | None, ...]:
        return tuple(page.progress() for page in self.pages)

    def tail(self, local_rank: int, limit: int) -> str:
        return ""

    def error_file(self, local_rank: int) -> str:
        return ""

    async def open_store(self, round_: int, host: str) -> tuple[str, int]:
        return host, 29500  # this script uses no store

    async def close_pages(self) -> None:
        for page in self.pages:
            page.close()
        self.pages = []

    async def close(self) -> None:
        await self.stop(0.0)
        self.ended.put_nowait(None)


async def run(submitted: ftcore.Submission, root: Path) -> ftcore.Outcome:
    """Run a job on this machine."""
    log = await ftcore.open_log("memory://example", "job", create=True)
    programs = Programs()
    supervisor: ftcore.Supervisor = programs
    security = ftcore.Security(token="a secret of at least 16 letters")
    config = ftcore.AgentConfig(
        job="job",
        node="here",
        slots=2,
        address="127.0.0.1",
        submission=submitted,
        log_dir=root / "logs",
        state_dir=root / "state",
        env=os.environ,
        security=security,
    )
    master = ftcore.Master(log, listen=f"unix:{root}/master.sock", security=security)
    leading = asyncio.create_task(master.run())
    outcome = await ftcore.Agent(config, log, supervisor).run()
    reported = [progress.step for progress in programs.progress() if progress is not None]
    print(f"last steps of the workers: {reported}")
    await supervisor.close()
    await programs.close_pages()
    await leading
    await log.close()
    return outcome


with tempfile.TemporaryDirectory() as folder:
    spec = ftcore.JobSpec(argv=("-c", SCRIPT), nodes_min=1, nodes_max=1)
    ended = asyncio.run(run(ftcore.submission(spec, command=sys.argv), Path(folder)))
print(f"{ended.outcome}: {ended.reason}")
assert ended.exit_code == 0
