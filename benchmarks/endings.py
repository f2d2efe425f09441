"""Short consecutive jobs: how many hang or fail at their end, under ftrun and under torchrun.

Each job runs two epochs of DDP over gloo and ends in one of three ways, in turn: ``destroy_process_group`` and the end
of the script, the same with ``sys.exit``, or neither. Busy processes keep every core occupied meanwhile. Ctrl-C ends
the benchmark early and records the results so far.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import attrs
from launch import BIN
from results import spread, table, write

SCRIPT = Path(__file__).parent / "scripts" / "short.py"
ENDINGS = ("destroy", "exit", "missing")
LAUNCHERS = {
    "ftrun": ["ftrun", "--max-restarts", "0"],
    "ftrun --no-preload": ["ftrun", "--max-restarts", "0", "--no-preload"],
    "torchrun": ["torchrun"],
}


@attrs.define
class Tally:
    """Results of one launcher's jobs."""

    seconds: list[float] = attrs.field(factory=list)
    hung: int = 0
    failed: int = 0

    def add(self, seconds: float | None, code: int) -> None:
        """Count one job."""
        if seconds is None:
            self.hung += 1
        else:
            self.seconds.append(seconds)
            self.failed += code != 0


def _compute() -> None:
    while True:
        pass


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep this many processes busy."""
    burners = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(count)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def run_one(name: str, ending: str, limit_s: float) -> tuple[str, float | None, int]:
    """Run one job; return its launcher, the seconds to its end (None: it hung and was stopped), and its exit code."""
    command = LAUNCHERS[name]
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as place:
        env = {**os.environ, "XDG_STATE_HOME": place, "ENDING": ending, "OMP_NUM_THREADS": "1"}
        line = [str(BIN / command[0]), *command[1:], "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
        began = time.monotonic()
        job = subprocess.Popen(
            [*line, f"{place}/snapshot"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            code = job.wait(limit_s)
        except subprocess.TimeoutExpired:
            job.send_signal(signal.SIGTERM)
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:
                job.kill()
                job.wait()
            return name, None, 0
        return name, time.monotonic() - began, code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs under ftrun")
    parser.add_argument("--peer-jobs", type=int, default=100, help="jobs under each of the others")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="a job that takes longer hangs")
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1, metavar="N", help="processes that compute")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="jobs at the same time")
    args = parser.parse_args()
    tallies = {name: Tally() for name in LAUNCHERS}
    wanted = {"ftrun": args.jobs}
    todo = [
        (name, ENDINGS[number % len(ENDINGS)])
        for number in range(args.jobs)
        for name in LAUNCHERS
        if number < wanted.get(name, args.peer_jobs)
    ]
    with busy(args.busy), ThreadPoolExecutor(args.at_once) as pool:
        runs = [pool.submit(run_one, name, ending, args.limit) for name, ending in todo]
        try:
            for done, run in enumerate(as_completed(runs), start=1):
                tallies[run.result()[0]].add(*run.result()[1:])
                if done % 10 == 0:
                    counts = ", ".join(f"{name}: {one.hung} hung, {one.failed} failed" for name, one in tallies.items())
                    print(f"{done} of {len(todo)} jobs; {counts}", file=sys.stderr)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
    rows = [
        (
            name,
            len(tally.seconds) + tally.hung,
            tally.hung,
            tally.failed,
            spread(tally.seconds, "s") if tally.seconds else "-",
        )
        for name, tally in tallies.items()
    ]
    head = ("launcher", "jobs", "hung", "failed", "command to end")
    command = f"python benchmarks/endings.py --jobs {args.jobs} --peer-jobs {args.peer_jobs} --busy {args.busy}"
    command += f" --at-once {args.at_once}" if args.at_once > 1 else ""
    note = f"1 node x 2 workers. A job hangs if it has not ended after {args.limit:.0f} s."
    write("Short jobs that end", command, table(head, rows) + "\n\n" + note)
    return 1 if tallies["ftrun"].hung or tallies["ftrun"].failed else 0


if __name__ == "__main__":
    sys.exit(main())
