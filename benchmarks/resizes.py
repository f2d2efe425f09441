"""How long training stands still when a node leaves and when it comes back: processes that stay, a restart, torchrun.

The same script runs on two to three nodes of this machine, one rank each. A node leaves: SIGTERM to its launcher. Later
its launcher is started again. A pause is the longest time between two steps of rank 0, whichever process has it, until
the new world has trained for a second. Under torchrun the script begins again from step 1.
"""

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
from launch import BIN, SCRIPTS, free_port, read_marks
from results import spread, table, write

NODES = 3
PATIENCE_S = 120.0
SECOND = 1_000_000_000
STEPS = 5
"""A world trains if each of its ranks, and no other, has completed so many steps in the last second."""

POLICY = """version: 1
chain:
  - step_retry: {max_retries: 1000, per_node: 900}
  - hot_swap: {max_swaps: 1000, per_node: 900, node_faults: 0}
  - process_restart: {max_restarts: 1000}
  - shrink: {max_shrinks: 1000, node_faults: 0}
  - grow: {every: 0s, steady: 0s, reserve: 0}
  - stop
"""


@attrs.define
class Nodes:
    """A job on several nodes.

    Args:
        place: its directory.
        launcher: ``ftrun`` or ``torchrun``.
        args: the script's arguments.
        port: port of torchrun's rendezvous.
        running: the launchers, by node.
    """

    place: Path
    launcher: str
    args: list[str]
    port: int
    running: dict[int, subprocess.Popen[bytes]] = attrs.field(factory=dict)

    def start(self, number: int) -> None:
        """Start a node."""
        env = os.environ | {"MARKS": str(self.place / "marks"), "OMP_NUM_THREADS": "1"}
        env |= {"XDG_STATE_HOME": str(self.place), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        if self.launcher == "torchrun":
            rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--max-restarts=1000"]
            flags = [*rendezvous, f"--rdzv-conf=is_host={'true' if number == 0 else 'false'}"]
        else:
            flags = ["--job=resizes", f"--node-id=node{number}", "--policy", str(self.place / "policy.yaml")]
        command = [str(BIN / self.launcher), f"--nnodes=2:{NODES}", *flags, str(SCRIPTS / "faulty.py"), *self.args]
        with (self.place / f"{number}.log").open("ab") as log:
            self.running[number] = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    def pause(self, ranks: int, since: int) -> float | None:
        """Wait until a world of so many ranks trains; its longest pause since a time in seconds. None: none trains."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            marks = read_marks(self.place / "marks")
            fresh = [mark.rank for mark in marks if time.monotonic_ns() - mark.mono < SECOND]
            if set(fresh) == set(range(ranks)) and min(map(fresh.count, set(fresh))) >= STEPS:
                times = sorted(mark.mono for mark in marks if mark.rank == 0)
                return max(after - before for before, after in itertools.pairwise(times) if after > since) / 1e9
            time.sleep(0.02)
        return None

    def end(self) -> None:
        """End all nodes."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def job(launcher: str, args: list[str]) -> Iterator[Nodes]:
    """A job on all nodes that trains."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-", ignore_cleanup_errors=True) as name:
        made = Nodes(Path(name), launcher, args, free_port())
        (made.place / "policy.yaml").write_text(POLICY)
        try:
            for number in range(NODES):
                made.start(number)
            yield made
        finally:
            made.end()


def pauses(launcher: str, count: int, *args: object) -> tuple[list[float], list[float]]:
    """Pauses of a run, in seconds: when a node leaves, and when it comes back."""
    left: list[float] = []
    back: list[float] = []
    with job(launcher, [str(arg) for arg in args]) as made:
        if made.pause(NODES, 0) is None:
            return left, back
        for _ in range(count):
            since = time.monotonic_ns()
            made.running[NODES - 1].send_signal(signal.SIGTERM)
            if (pause := made.pause(NODES - 1, since)) is None:
                break
            left.append(pause)
            made.running[NODES - 1].wait()
            since = time.monotonic_ns()
            made.start(NODES - 1)
            if (pause := made.pause(NODES, since)) is None:
                break
            back.append(pause)
    return left, back


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4, help="changes of each kind under ftrun")
    parser.add_argument("--peer-count", type=int, default=2, help="changes of each kind under torchrun")
    parser.add_argument("--setup", type=float, nargs="+", default=[0.0, 1.0, 10.0], help="seconds of set-up")
    parser.add_argument("--dry", action="store_true", help="print, and do not change RESULTS.md")
    args = parser.parse_args()
    rows = []
    for setup_s in args.setup:
        stays = pauses("ftrun", args.count, "resize", 0, 1, setup_s)
        restarts = pauses("ftrun", args.count, "raise", 0, 1, setup_s)
        peer = pauses("torchrun", args.peer_count, "raise", 0, 1, setup_s)
        for what, *found in zip(("leaves", "comes back"), stays, restarts, peer, strict=True):
            cells = [spread(each, "s") if each else f"not within {PATIENCE_S:.0f} s" for each in found]
            known = found[0] and found[2]
            ratio = f"{statistics.median(found[2]) / statistics.median(found[0]):.0f}x" if known else "-"
            rows.append((f"{setup_s:g} s", what, *cells, ratio))
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    head = ("set-up of a process", "a node", "processes stay", "all restarted", "torchrun", "torchrun / stays")
    body = table(head, rows) + (
        "\n\nThree nodes, one rank each, and a step of 50 ms; pauses of rank 0. Medians, smallest and largest."
    )
    if args.dry:
        print(body)
    else:
        write("Worlds that change", " ".join(["python benchmarks/resizes.py", *sys.argv[1:]]), body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
