"""Demo: a training loses workers, a node and its master, recovers by itself, and ends with the same weights.

1. Train without faults; record the final loss and the digest of the weights.
2. Train again with faults: SIGKILL of a worker, an exception in a worker, a segfault in a worker, SIGKILL of the agent
   of a node, SIGKILL of the master. After each fault of a rank, the process of the other one stays, and a new one joins
   it. Between the faults, pause the training and resume it.
3. Print the incidents and the checkpoints, verify that a replay of the event log reproduces every decision, and compare
   the weights.

Exit code 0 only if all of that succeeds.
"""

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
NODES = 2
STEP = re.compile(r"step (\d+)/\d+ loss")


class Run:
    """One training under ftrun.

    Args:
        job: its name.
        home: directory for all of its files.
        steps: number of steps to train.
        faults: faults to cause, by step, each once.
    """

    def __init__(self, job: str, home: Path, steps: int, faults: dict[int, Callable[["Run"], str]]) -> None:
        self.job, self.steps, self.faults = job, steps, dict(faults)
        self.out, self.store = home / job, f"sqlite://{home / 'log'}"
        self.reached = self.computed = 0
        self.out.mkdir(parents=True)
        self.orders = self.out / "faults"
        self.orders.mkdir()
        self.env = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "FTCORE_STORE": self.store}

    def go(self) -> float:
        """Train to the end; return the seconds that it took."""
        began = time.monotonic()
        script = [
            str(HERE / "train.py"),
            "--out",
            str(self.out),
            "--steps",
            str(self.steps),
            "--faults",
            str(self.orders),
        ]
        flags = ["--local-nodes", str(NODES), "--job", self.job, "--checkpoints", str(self.out / "checkpoints")]
        command = [str(BIN / "ftrun"), *flags, *script]
        process = subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self.show(line.rstrip())
                self.cause_faults(line)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if process.wait() != 0:
            sys.exit(f"demo: the run {self.job} failed with exit code {process.returncode}")
        if self.faults:
            sys.exit(f"demo: faults planned for steps {list(self.faults)} did not occur")
        if left := sorted(order.name for order in self.orders.iterdir()):
            sys.exit(f"demo: planned faults did not occur: {', '.join(left)}")
        return time.monotonic() - began

    def show(self, line: str) -> None:
        """Print progress: ftcore's lines, and every tenth step of the training; tracebacks stay in the log files."""
        found = STEP.search(line)
        if line.startswith(("ftcore: ", "ftrun: ", "final loss")):
            print(f"  {line}", flush=True)
        elif found and int(found[1]) % 10 == 0:
            print(f"    {line}", flush=True)

    def cause_faults(self, line: str) -> None:
        """Cause the faults that are planned for the reported step."""
        found = STEP.search(line)
        if not found:
            return
        self.reached, self.computed = int(found[1]), self.computed + 1
        for step in [step for step in self.faults if step <= self.reached]:
            print(f"demo: {self.faults.pop(step)(self)}", flush=True)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of all events of a type in the log."""
        command = [str(BIN / "ftctl"), "events", "--job", self.job, "--type", kind, "--format", "json"]
        lines = subprocess.run(command, env=self.env, capture_output=True, text=True, check=True).stdout.splitlines()
        return [json.loads(line)["data"] for line in lines]

    def newest(self, kind: str, node: str = "") -> dict[str, Any]:
        """Return the data of the newest event of a type in the log."""
        return [data for data in self.all(kind) if not node or data["node"] == node][-1]

    def restarted(self) -> int:
        """Count the processes that were started again for a fault of the other rank."""
        rounds: dict[int, dict[str, int]] = {}
        for data in self.all("workers.started"):
            rounds.setdefault(data["round"], {})[data["node"]] = data["pids"][0]
        changed = [
            sum(before.get(node) != pid for node, pid in after.items())
            for before, after in itertools.pairwise(rounds.values())
        ]
        return sum(max(0, count - 1) for count in changed)

    def ftctl(self, *args: str) -> int:
        """Run an ftctl command with visible output; return its exit code."""
        print(f"\n$ ftctl {' '.join(args)} --job {self.job}", flush=True)
        return subprocess.run([str(BIN / "ftctl"), *args, "--job", self.job], env=self.env, check=False).returncode


def kill_worker(run: Run) -> str:
    pids = run.newest("workers.started", "node1")["pids"]
    os.kill(pids[0], signal.SIGKILL)
    return f"SIGKILL to rank 1 (pid {pids[0]})"


def kill_node(run: Run) -> str:
    pid = run.newest("node.joined", "node1")["pid"]
    os.kill(pid, signal.SIGKILL)
    return f"SIGKILL to the agent of node1 (pid {pid}): the node is lost"


def kill_master(run: Run) -> str:
    pid = run.newest("master.elected")["pid"]
    os.kill(pid, signal.SIGKILL)
    return f"SIGKILL to the master (pid {pid}): the training must not be interrupted"


def pause(run: Run) -> str:
    paused = run.ftctl("pause", "--why", "inspection")
    resumed = run.ftctl("resume")
    if paused or resumed:
        sys.exit("demo: the training could not be paused")
    return "paused and resumed; no process was restarted"


def planned(kind: str, rank: int) -> Callable[[Run], str]:
    def plan(run: Run) -> str:
        (run.orders / f"{kind}.{rank}").touch()  # no step: on a busy machine the ranks are ahead of what was printed
        return f"{kind} of rank {rank} planned at its next step"

    return plan


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="steps to train (default: 120)")
    parser.add_argument("--keep", type=Path, help="keep logs, event logs and checkpoints in this directory")
    args = parser.parse_args()
    home = args.keep.absolute() if args.keep else Path(tempfile.mkdtemp(prefix="ftcore-demo-"))
    home.mkdir(parents=True, exist_ok=True)
    try:
        return run_demo(home, args.steps, kept=bool(args.keep))
    finally:
        if not args.keep:
            shutil.rmtree(home, ignore_errors=True)


def run_demo(home: Path, steps: int, *, kept: bool) -> int:
    began = time.monotonic()
    print(f"demo: 1. {steps} steps of a 3.3M-parameter GPT, {NODES} nodes x 1 worker, no faults", flush=True)
    calm = Run("calm", home, steps, {})
    calm_s = calm.go()
    print(f"demo: that took {calm_s:.0f} s\n\ndemo: 2. the same with faults:", flush=True)
    plan: dict[int, Callable[[Run], str]] = {
        steps * 1 // 7: kill_worker,
        steps * 2 // 7: planned("exception", 0),
        steps * 3 // 7: pause,
        steps * 4 // 7: planned("segfault", 1),
        steps * 5 // 7: kill_node,
        steps * 6 // 7: kill_master,
    }
    stormy = Run("stormy", home, steps, plan)
    stormy_s = stormy.go()
    print(f"demo: that took {stormy_s:.0f} s", flush=True)
    stormy.ftctl("incidents")
    stormy.ftctl("checkpoints")
    verified = stormy.ftctl("replay", "--verify") == 0
    ends = [(run.out / "result.txt").read_text().split() for run in (calm, stormy)]
    equal, restarted = ends[0] == ends[1], stormy.restarted()
    print(f"\ndemo: of {steps} steps, {stormy.computed - steps} were computed again after a fault")
    print(f"demo: processes started again for a fault of the other rank: {restarted or 'none'}")
    print(f"demo: final loss {float.fromhex(ends[0][0]):.6f} without faults,")
    verdict = "equal to the last bit" if equal else "DIFFERENT"
    print(f"demo: final loss {float.fromhex(ends[1][0]):.6f} with five faults: {verdict}")
    print(f"demo: weights {ends[0][1][:16]} and {ends[1][1][:16]}: {'equal' if equal else 'DIFFERENT'}")
    print(f"demo: a replay reproduces every decision in the log: {'yes' if verified else 'NO'}")
    if kept:
        print(f"demo: to read the event log: FTCORE_STORE={stormy.store} ftctl events --job stormy")
    print(f"demo: {time.monotonic() - began:.0f} s in total")
    return 0 if equal and verified and not restarted else 1


if __name__ == "__main__":
    sys.exit(main())
