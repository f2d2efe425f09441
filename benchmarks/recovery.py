"""Outage after SIGKILL of a worker, until every rank has completed a step: ftrun and torchrun.

torchrun runs with ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``: by default it reuses one store, and new workers may read
the addresses of dead ones.
"""

import argparse
import os
import signal
import statistics
import sys
import time

from launch import SCRIPTS, Job, launched
from results import spread, table, write

WORLDS = ((1, 2), (1, 4), (2, 1))


def kill_and_time(job: Job, kills: int, settle_s: float = 0.3) -> tuple[list[float], list[float], int]:
    """Return seconds from each kill to the process group and to the first step of all ranks, and the lost jobs."""
    to_group: list[float] = []
    to_step: list[float] = []
    first = job.await_all("stepped", 0, set())
    if first is None:
        return to_group, to_step, kills
    for count in range(kills):
        time.sleep(settle_s)  # let the training run, and the launcher become idle
        old = {mark.pid for mark in first.values()}
        victim = first[count % job.ranks].pid
        killed = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        again = job.await_all("stepped", killed, old)
        if again is None:
            return to_group, to_step, kills - count
        new = {mark.pid for mark in again.values()}
        groups = [mark.mono for mark in job.marks() if mark.what == "group" and mark.pid in new]
        to_group.append((max(groups) - killed) / 1e9)
        to_step.append((max(mark.mono for mark in again.values()) - killed) / 1e9)
        first = again
    return to_group, to_step, 0


def own_deaths(job: Job, kills: int) -> tuple[list[float], int]:
    """Return seconds from each SIGKILL of a rank by itself to the first step of all ranks, and the lost jobs."""
    to_step: list[float] = []
    ranks = job.await_all("stepped", 0, set())
    for _ in range(kills):
        death = ranks and job.await_one("died", min(mark.mono for mark in ranks.values()))
        if not ranks or not death:
            break
        ranks = job.await_all("stepped", death.mono, {mark.pid for mark in ranks.values()})
        if ranks:
            to_step.append((max(mark.mono for mark in ranks.values()) - death.mono) / 1e9)
    return to_step, kills - len(to_step)


def compare_own_deaths(kills: int, peer_kills: int, command: str) -> None:
    """A plain torch script in which a rank kills itself and the others raise: ftrun and torchrun."""
    rows = []
    for workers in (2, 4):
        with launched("ftrun", 1, workers, [], [str(kills), "40"], SCRIPTS / "reduce.py") as job:
            ours, lost = own_deaths(job, kills)
        with launched("torchrun", 1, workers, [], [str(peer_kills), "40"], SCRIPTS / "reduce.py") as job:
            theirs, peer_lost = own_deaths(job, peer_kills)
        ratio = statistics.median(theirs) / statistics.median(ours) if ours and theirs else float("nan")
        first = f"{ours[0]:.2f} s" if ours else "-"
        cells = [spread(seconds, "s") if seconds else "-" for seconds in (ours, theirs)]
        rows.append((f"1 x {workers}", cells[0], first, cells[1], f"{ratio:.1f}x", f"{lost} / {peer_lost}"))
    head = ("nodes x workers", "ftrun: to first step", "the first of them", "torchrun", "ratio", "lost")
    body = (
        "\n\nA script of plain torch (`scripts/reduce.py`): its own all-reduce, 50 ms of sleep a step; a rank sends"
        "\nitself SIGKILL at step 40 of its round, the others raise and print tracebacks. From the signal to the moment"
        "\nwhen every rank had completed a step. Medians, smallest and largest."
    )
    write("Recovery from a rank that kills itself", command, table(head, rows) + body)


def hundred(command: str) -> None:
    """Kill a worker a hundred times each in worlds of 1 x 2 and 1 x 4; count the lost jobs."""
    rows = []
    for nodes, workers in ((1, 2), (1, 4)):
        with launched("ftrun", nodes, workers) as job:
            _, steps, lost = kill_and_time(job, 100, settle_s=0.05)
        rows.append((f"{nodes} x {workers}", len(steps), lost, spread(steps, "s") if steps else "-"))
    head = ("nodes x workers", "recovered", "lost", "SIGKILL to first step of all ranks")
    write("A hundred restarts", command, table(head, rows))


def compare_worlds(kills: int, peer_kills: int, command: str) -> None:
    """One worker is killed from outside: ftrun and torchrun."""
    rows = []
    for nodes, workers in WORLDS:
        with launched("ftrun", nodes, workers) as job:
            group, ours, lost = kill_and_time(job, kills, settle_s=2.5)
        with launched("torchrun", nodes, workers) as job:
            peer_group, theirs, peer_lost = kill_and_time(job, peer_kills, settle_s=1.0)
        ratio = statistics.median(theirs) / statistics.median(ours) if ours and theirs else float("nan")
        rows.append(
            (
                f"{nodes} x {workers}",
                spread(ours, "s"),
                spread(theirs, "s") if theirs else "-",
                f"{ratio:.1f}x",
                spread(group, "ms", 1000),
                spread(peer_group, "ms", 1000) if peer_group else "-",
                f"{lost} / {peer_lost}",
            )
        )
    head = ("nodes x workers", "ftrun: to first step", "torchrun", "ratio", "ftrun: to group ready", "torchrun", "lost")
    body = (
        table(head, rows) + "\n\nSIGKILL of one worker to the moment when every rank had completed a step (or had its"
    )
    write("Recovery from SIGKILL of a worker", command, body + "\nprocess group). Medians, smallest and largest.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="kills per world under ftrun")
    parser.add_argument("--peer-kills", type=int, default=4, help="kills per world under torchrun")
    parser.add_argument(
        "--hundred", action="store_true", help="instead: a hundred kills each of 1x2 and 1x4; count lost jobs"
    )
    parser.add_argument("--own", action="store_true", help="only: a rank of a plain torch script kills itself")
    args = parser.parse_args()
    command = "python benchmarks/recovery.py" + (" --hundred" if args.hundred else "")
    if args.hundred:
        hundred(command)
        return 0
    compare_own_deaths(args.kills, args.peer_kills, f"{command} --own")
    if not args.own:
        compare_worlds(args.kills, args.peer_kills, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
