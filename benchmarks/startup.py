"""Time to the first step, memory without the workers, and idle CPU: ftrun and torchrun."""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

from launch import Job, launched
from results import spread, table, write


def family(job: Job) -> dict[int, str]:
    """Return process IDs and command lines of the job's launchers and their descendants, without the workers."""
    parents: dict[int, int] = {}
    lines: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            pid = int(entry.name)
            lines[pid] = (entry / "cmdline").read_text().replace("\0", " ")
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    wanted = {process.pid for process in job.processes}
    grown = True
    while grown:
        grown = False
        for pid, parent in parents.items():
            if pid not in wanted and (parent in wanted or str(job.home) in lines[pid]):
                wanted.add(pid)
                grown = True
    workers = {mark.pid for mark in job.marks()}
    return {pid: lines[pid] for pid in wanted if pid not in workers and pid in lines}


def memory_kib(pid: int, field: str) -> int:
    """Return ``Pss`` or ``Rss`` of a process in KiB; 0: it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(field + ":"))


def cpu_s(pids: list[int]) -> float:
    """Return CPU seconds used so far."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(launcher: str, options: list[str], idle_s: float) -> tuple[float, float, float, float, float]:
    """Return time to the first step (s), RSS of the agent, PSS without the workers, PSS of all (MiB), idle CPU (%)."""
    with launched(launcher, 1, 2, options) as job:
        stepped = job.await_all("stepped", 0, set())
        assert stepped is not None, f"{launcher} did not start"
        first = (max(mark.mono for mark in stepped.values()) - job.started) / 1e9
        time.sleep(3.0)  # parked workers are forked and lazy imports are done by then
        pids = list(family(job))
        before, began = cpu_s(pids), time.monotonic()
        time.sleep(idle_s)
        cpu = 100 * (cpu_s(pids) - before) / (time.monotonic() - began)
        rss = memory_kib(job.processes[0].pid, "Rss") / 1024
        beside = sum(memory_kib(pid, "Pss") for pid in pids) / 1024
        workers = sum(memory_kib(mark.pid, "Pss") for mark in stepped.values()) / 1024
        return first, rss, beside, beside + workers, cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--idle", type=float, default=10.0, metavar="SECONDS")
    args = parser.parse_args()
    kinds: tuple[tuple[str, list[str]], ...] = (("ftrun", []), ("ftrun", ["--no-preload"]), ("torchrun", []))
    seen: dict[str, list[tuple[float, float, float, float, float]]] = {}
    for _ in range(args.runs):  # interleaved, so that load affects all alike
        for launcher, options in kinds:
            seen.setdefault(" ".join([launcher, *options]), []).append(measure(launcher, options, args.idle))
    rows = []
    peer = statistics.median(run[0] for run in seen["torchrun"])
    for name, runs in seen.items():
        columns = list(zip(*runs, strict=True))
        rows.append(
            (
                name,
                spread(columns[0], "s"),
                f"{peer / statistics.median(columns[0]):.2f}x",
                *(f"{statistics.median(column):.0f}" for column in columns[1:4]),
                f"{statistics.median(columns[4]):.2f} %",
            )
        )
    head = (
        "launcher",
        "command to first step",
        "torchrun / this",
        "agent RSS, MiB",
        "PSS of non-workers, MiB",
        "PSS of all, MiB",
        "CPU of non-workers while training",
    )
    write("Start, memory, idle CPU (1 node x 2 workers)", "python benchmarks/startup.py", table(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
