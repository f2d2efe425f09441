"""From a fault to the next completed step of all ranks: processes that stay, a restart, and torchrun.

The same script runs under ftrun with the built-in chain (a failed collective is retried in place, a killed rank is
swapped), under ftrun with a chain that restarts all processes, and under torchrun, where it begins again from step 1.
With ``--prepare always``, processes that have done their set-up wait beside the running ones.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from launch import LOST_S, SCRIPTS, Job, Mark, launched
from results import spread, table, write

EVERY = 30
"""Steps between two faults."""

STEP_S = 0.05
READY_S = 10.0
"""Seconds until prepared processes are ready, beside their set-up."""

STAYS = """version: 1
chain:
  - step_retry: {max_retries: 1000, per_node: 900}
  - hot_swap: {max_swaps: 1000, per_node: 900, node_faults: 0}
  - dying_checkpoint
  - process_restart: {max_restarts: 1000}
  - stop
"""
RESTARTS = "version: 1\nchain:\n  - process_restart: {max_restarts: 1000}\n  - stop\n"


def outages(job: Job, count: int, every: int) -> list[float]:
    """Seconds from each fault until every rank has completed the step of the fault, or, as a new process, any step."""
    found: list[float] = []
    for number in range(1, count + 1):
        fault = job.await_one(f"fault{number * every}", 0)
        if fault is None:
            break
        old = {mark.pid for mark in job.marks() if mark.mono <= fault.mono}
        ended = _all_go_on(job, fault, number * every, old)
        if ended is None:
            break
        found.append((ended - fault.mono) / 1e9)
    return found


def _all_go_on(job: Job, fault: Mark, step: int, old: set[int]) -> int | None:
    deadline = time.monotonic() + LOST_S
    while time.monotonic() < deadline and all(process.poll() is None for process in job.processes):
        first: dict[int, int] = {}
        for mark in job.marks():
            is_done = mark.mono > fault.mono and mark.what.startswith("done")
            if is_done and (mark.pid not in old or int(mark.what.removeprefix("done")) >= step):
                first.setdefault(mark.rank, mark.mono)
        if len(first) == job.ranks:
            return max(first.values())
        time.sleep(0.002)
    return None


def measured(
    launcher: str, ranks: int, kind: str, count: int, setup_s: float, policy: str = "", *, prepares: bool = False
) -> list[float]:
    """The outages of one run."""
    every = EVERY + int((setup_s + READY_S) / STEP_S) if prepares else EVERY
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "policy.yaml"
        file.write_text(policy)
        options = ["--policy", str(file)] if policy else []
        options += ["--prepare", "always"] if prepares else []
        args = [kind, str(count), str(every), str(setup_s)]
        with launched(launcher, 1, ranks, options, args, SCRIPTS / "faulty.py") as job:
            return outages(job, count, every)


def _ratio(peer: list[float], ours: list[float]) -> str:
    return f"{statistics.median(peer) / statistics.median(ours):.1f}x" if peer and ours else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5, help="faults of each kind under ftrun")
    parser.add_argument("--peer-count", type=int, default=2, help="faults under torchrun")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument(
        "--setup", type=float, nargs="+", default=[0.0, 1.0, 10.0], help="seconds of set-up of a process"
    )
    args = parser.parse_args()
    rows = []
    for setup_s in args.setup:
        for ranks in args.ranks:
            retry = measured("ftrun", ranks, "raise", args.count, setup_s, STAYS)
            swap = measured("ftrun", ranks, "kill", args.count, setup_s, STAYS)
            restart = measured("ftrun", ranks, "kill", args.count, setup_s, RESTARTS)
            ready = [
                measured("ftrun", ranks, "kill", args.count, setup_s, policy, prepares=True)
                for policy in (STAYS, RESTARTS)
            ]
            peer = measured("torchrun", ranks, "kill", args.peer_count, setup_s)
            cells = [spread(each, "s") if each else "-" for each in (retry, swap, restart, *ready, peer)]
            ratios = [
                statistics.median(peer) / statistics.median(each) if each and peer else 0.0 for each in (retry, swap)
            ]
            rows.append((f"{setup_s:g} s", ranks, *cells, f"{ratios[0]:.0f}x, {ratios[1]:.1f}x"))
    head = (
        "set-up of a process",
        "ranks",
        "failed collective: retried in place",
        "SIGKILL: swapped",
        "SIGKILL: all restarted",
        "swapped, prepared",
        "all restarted, prepared",
        "SIGKILL: torchrun",
        "torchrun / retry, / swap",
    )
    body = (
        "\n\nFrom the fault to the moment when every rank had completed the step of the fault (a new process: a step),"
        "\nwhich itself takes 50 ms. Medians, smallest and largest. Under torchrun, it begins again from step 1."
    )
    command = " ".join(("python benchmarks/alive.py", *sys.argv[1:]))
    write("Recovery with processes that stay", command, table(head, rows) + body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
