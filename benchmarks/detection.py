"""Time from a worker's death to detection, decision and stop, compared with the kernel's time to end such a process.

All times are on one monotonic clock: injector and agent run in the same boot.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time

from launch import Job, launched
from results import spread, table, write

from ftcore import open_log
from ftcore.events import Event

SIZES_MIB = (0, 128, 512)
BALLAST = "import sys,time; b=bytearray({size}<<20); b[::4096]=b'x'*len(b[::4096]); print(1,flush=True); time.sleep(60)"


async def events_of(job: Job) -> list[Event]:
    """Return all events of the job."""
    log = await open_log(f"sqlite://{job.home}/ftcore", job.name)
    try:
        return [event async for event in log.read()]
    finally:
        await log.close()


def kernel_s(size_mib: int, count: int) -> list[float]:
    """Return seconds from SIGKILL to the return of a blocking wait, for a process with that much memory."""
    found = []
    for _ in range(count):
        code = BALLAST.format(size=size_mib)
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            began = time.monotonic()
            process.kill()
            os.waitpid(process.pid, 0)
            found.append(time.monotonic() - began)
            process.returncode = -9
    return found


def ours(size_mib: int, count: int) -> tuple[list[float], list[float], list[float]]:
    """Return seconds from SIGKILL to its detection, to the durable stop order, and to the end of all workers."""
    kills: list[int] = []
    with launched("ftrun", 1, 2, args=[str(size_mib)]) as job:
        first = job.await_all("stepped", 0, set())
        for _ in range(count):
            assert first is not None, "the job was lost"
            time.sleep(2.5)
            kills.append(time.monotonic_ns())
            os.kill(first[1].pid, signal.SIGKILL)
            first = job.await_all("stepped", kills[-1], {mark.pid for mark in first.values()})
        events = asyncio.run(events_of(job))
    seen, decided, stopped = [], [], []
    failed = [event for event in events if event.type == "worker.failed" and event.data.exitcode == -signal.SIGKILL]
    for killed, failure in zip(kills, failed, strict=True):
        assert failure.at is not None
        seen.append((failure.at.mono - killed) / 1e9)
        # The master stamps with wall time; the same fact's own wall clock ties it to the monotonic one.
        decided.append((failure.at.mono - killed + failure.time - failure.at.wall) / 1e9)
        end = next(event for event in events if event.seq > failure.seq and event.type == "workers.stopped")
        assert end.at is not None
        stopped.append((end.at.mono - killed) / 1e9)
    return seen, decided, stopped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    args = parser.parse_args()
    rows = []
    for size in SIZES_MIB:
        seen, decided, stopped = ours(size, args.kills)
        rows.append(
            (
                f"torch + {size} MiB",
                spread(kernel_s(size, args.kills), "ms", 1000),
                spread(seen, "ms", 1000),
                spread(decided, "ms", 1000),
                spread(stopped, "ms", 1000),
            )
        )
    head = (
        "worker",
        "the kernel alone (plain process of that ballast)",
        "seen by the agent",
        "sequenced by the master",
        "all workers ended",
    )
    write(
        "Detection of a worker's death (from SIGKILL, 1 node x 2 workers)",
        "python benchmarks/detection.py",
        table(head, rows),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
