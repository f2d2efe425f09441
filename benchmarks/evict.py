"""Outage of ``ftctl evict`` of a healthy node, compared with a plain restart of workers in the same job.

The platform takes some seconds to launch a machine (``local:?delay``). The evicted node trains until its replacement is
ready, so the launch should not add to the outage. The outage is from the last completed step of any rank in the old
round until every rank has completed a step in the new round. The plain restart is after SIGKILL of one worker.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time

import attrs
from launch import BIN, Job, Mark, launched
from results import spread, table, write

NODES = 2
SETTLE_S = 3.0
"""Seconds between two outages: the training runs, and workers are parked for the next start."""


@attrs.define
class Evictions:
    """Measurements of a job with alternate evictions and killed workers.

    Args:
        job: the job.
        ranks: each rank's first step of the newest round.
        evicted: outage of each eviction, in seconds.
        restarted: outage of each plain restart, in seconds.
        awaited: seconds from the command to the last step of the old round, of each eviction.
        lives: evictions of the last node.
    """

    job: Job
    ranks: dict[int, Mark]
    evicted: list[float] = attrs.field(factory=list)
    restarted: list[float] = attrs.field(factory=list)
    awaited: list[float] = attrs.field(factory=list)
    lives: int = 0

    def evict(self) -> None:
        """Evict the last node, and wait until its replacement trains."""
        node = f"node{NODES - 1}" + (f".{self.lives}" if self.lives else "")
        env = {**os.environ, "XDG_STATE_HOME": str(self.job.home)}
        asked = time.monotonic_ns()
        argv = [str(BIN / "ftctl"), "evict", node, "--job", self.job.name, "--no-wait"]
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.lives += 1
        outage, last = self._outage(asked)
        self.evicted.append(outage)
        self.awaited.append((last - asked) / 1e9)

    def restart(self) -> None:
        """Kill one worker, and wait until all train again."""
        killed = time.monotonic_ns()
        os.kill(self.ranks[len(self.restarted) % self.job.ranks].pid, signal.SIGKILL)
        self.restarted.append(self._outage(killed)[0])

    def _outage(self, after: int) -> tuple[float, int]:
        """Return the outage in seconds, and the time of the last step of the old round."""
        old = {mark.pid for mark in self.ranks.values()}
        again = self.job.await_all("stepped", after, old)
        if again is None:
            raise SystemExit("the job is lost")
        last = max(mark.mono for mark in self.job.marks() if mark.pid in old and mark.what in ("stepped", "step"))
        self.ranks = again
        return (max(mark.mono for mark in again.values()) - last) / 1e9, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=6, help="evictions, and as many plain restarts")
    parser.add_argument("--delay", type=float, default=5.0, help="seconds for the platform to launch a machine")
    args = parser.parse_args()
    platform = f"local:?delay={args.delay:g}s"
    with launched("ftrun", NODES, 1, ["--platform", platform], ["0", "every"]) as job:
        first = job.await_all("stepped", 0, set())
        if first is None:
            raise SystemExit("the job did not start")
        seen = Evictions(job, first)
        for _ in range(args.times):
            for measure in (seen.restart, seen.evict):
                time.sleep(SETTLE_S)
                measure()
    ratio = statistics.median(seen.evicted) / statistics.median(seen.restarted)
    row = (
        f"{args.delay:g} s",
        spread(seen.awaited, "s"),
        spread(seen.evicted, "ms", 1000),
        spread(seen.restarted, "ms", 1000),
        f"{ratio:.2f}x",
    )
    head = ("the platform takes", "trained on for", "outage of `ftctl evict`", "of a plain restart", "ratio")
    body = (
        f"{table(head, [row])}\n\n{NODES} nodes x 1 worker. An outage is from the last step of any rank in the old"
        " round until every rank has completed\na step in the new one; a plain restart follows SIGKILL of one worker,"
        " alternately with evictions in the same job.\nMedians, smallest and largest."
    )
    write("Eviction of a healthy node", f"python benchmarks/evict.py --times {args.times}", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
