"""Outage after the loss of a node, until the first step of all ranks: ftrun and torchrun on emulated hosts.

Hosts are network namespaces with their own processes (``tests/chaos/cluster``). Two train, one worker each; three
others serve etcd for ftrun. A node is lost by SIGKILL of all its processes (its kernel still answers with RST), or by a
power cut (nothing answers). ``with`` a replacement, its agent is started two seconds later on another host;
``without``, a job with ``--nnodes 1:2`` continues on one node, under ftrun with ``shrink`` before any waiting. The lost
node is a plain one, the host of the workers' store, the host of ftrun's master, or the host of both. torchrun's
rendezvous runs on the first node, which also serves the store.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
from launch import BIN, SCRIPT
from results import table, write

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("", "chaos/ftrun", "chaos/cluster")]

from fleet import Etcd  # noqa: E402
from harness import wait_until  # noqa: E402
from hosts import Host, Lan, environ, lan, why_not  # noqa: E402

REPLACEMENT_S = 2.0
PORT = 29400
POLICY = "version: 1\nchain:\n  - shrink\n  - process_restart\n  - stop\n"
HOW: dict[str, Callable[[Host], None]] = {"SIGKILL": Host.kill, "power cut": Host.power_off}
LOSSES = ("plain", "store", "master", "store and master")
PEER_LOSSES = ("plain", "store")


@attrs.define
class Trial:
    """One job that loses one node.

    Args:
        where: its hosts.
        place: its directory.
        launcher: ``ftrun`` or ``torchrun``.
        lost: the node to lose.
        replaced: whether a replacement is started.
    """

    where: Lan
    place: Path
    launcher: str
    lost: str
    replaced: bool
    store: str = ""

    @property
    def hosts(self) -> list[Host]:
        return list(self.where.hosts[3:])

    def start(self, number: int) -> None:
        """Start an agent on one of the training hosts."""
        host = self.hosts[number]
        home = self.place / host.name
        home.mkdir(exist_ok=True)
        marks = {"MARKS": str(self.place / "marks"), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(home)}
        marks["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else torchrun's new workers may read addresses of dead ones
        log = (self.place / f"{host.name}.log").open("ab")
        with log:
            host.spawn(self.command(number), stdout=log, stderr=log, env=environ(marks))

    def command(self, number: int) -> list[str]:
        """An agent's command line."""
        nnodes = "2" if self.replaced else "1:2"
        if self.launcher == "torchrun":
            rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.hosts[0].name}:{PORT}"]
            return [str(BIN / "torchrun"), "--nnodes", nnodes, *rendezvous, "--max-restarts", "100", str(SCRIPT)]
        flags = ["--store", self.store, "--job", "bench", "--nnodes", nnodes, "--node-rank", str(number)]
        if not self.replaced:
            policy = self.place / "policy.yaml"
            policy.write_text(POLICY)
            flags += ["--policy", str(policy)]
        return [str(BIN / "ftrun"), *flags, str(SCRIPT)]

    def marks(self, after: int) -> dict[int, int]:
        """Return when each rank's process completed its first step, for steps after a time."""
        path = self.place / "marks"
        found: dict[int, int] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            what, rank, _, mono = line.split()
            if what == "stepped" and int(mono) > after:
                found.setdefault(int(rank), int(mono))
        return found

    def master(self) -> str:
        """Return the host of ftrun's master."""
        return next((host.name for host in self.hosts if host.processes("ftcore.cli.master")), "")

    def begin(self) -> Host:
        """Start the job; return the node to lose when both ranks have completed steps."""
        apart = self.launcher == "ftrun" and self.lost in ("store", "master")
        for number in (1, 0) if apart else (0, 1):
            self.start(number)
            if apart and number == 1:
                wait_until(lambda: self.master() == self.hosts[1].name, "the second node to lead")
        wait_until(lambda: len(self.marks(0)) == 2, "the first steps")
        time.sleep(3.0)  # standbys start, the training goes on
        return self.hosts[1 if self.lost in ("plain", "master") else 0]

    def measure(self, how: str, bound_s: float) -> float | None:
        """Return seconds from the loss to the first steps after it; None: no steps followed."""
        victim = self.begin()
        ranks = 2 if self.replaced else 1
        lost = time.monotonic_ns()
        HOW[how](victim)
        came = False
        while (gone_s := (time.monotonic_ns() - lost) / 1e9) < bound_s:
            if self.replaced and not came and gone_s >= REPLACEMENT_S:
                self.start(2)
                came = True
            if len(found := self.marks(lost)) >= ranks:
                return (max(found.values()) - lost) / 1e9
            time.sleep(0.005)
        return None


def trial(launcher: str, lost: str, how: str, replaced: bool, bound_s: float, keep: bool) -> float | None:
    """Run one trial on new hosts."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as name, lan(6, Path(name)) as where:
        made = Trial(where, Path(name), launcher, lost, replaced)
        if launcher == "ftrun":
            etcd = Etcd(where.hosts, Path(name))
            etcd.start()
            wait_until(etcd.healthy, "etcd")
            made.store = f"etcd://{etcd.endpoints}/bench"
        found = made.measure(how, bound_s)
        if keep:
            print_log(made)
        return found


def bare() -> float:
    """Return seconds from the command of a single, cold worker to its first step."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as name:
        marks = Path(name) / "marks"
        alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        begun = time.monotonic_ns()
        with subprocess.Popen(
            [sys.executable, str(SCRIPT)], env={**environ({"MARKS": str(marks), "OMP_NUM_THREADS": "1"}), **alone}
        ) as process:
            try:
                wait_until(lambda: marks.exists() and "stepped" in marks.read_text(), "a lone worker's first step")
            finally:
                process.kill()
        stepped = next(line for line in marks.read_text().splitlines() if line.startswith("stepped"))
        return (int(stepped.split()[3]) - begun) / 1e9


def print_log(made: Trial) -> None:
    """Print the launcher's output, and ftrun's event log."""
    for log in made.place.glob("*.log"):
        print(f"--- {log.name}\n{log.read_text()[-1500:]}")
    if made.store:
        command = [str(BIN / "ftctl"), "--store", made.store, "--job", "bench", "events"]
        subprocess.run(made.where.eye.command(*command), env=environ({"COLUMNS": "160"}), check=False)


def cell(values: Sequence[float | None], bound_s: float) -> str:
    """Return a table cell: the median of recovered trials, and the number of lost ones."""
    back = [value for value in values if value is not None]
    if not back:
        return f"not within {bound_s:.0f} s"
    lost = f", {len(values) - len(back)} lost" if len(back) < len(values) else ""
    return f"{statistics.median(back):.1f} s (max {max(back):.1f}{lost})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="trials of each kind")
    parser.add_argument("--bound", type=float, default=90.0, help="seconds after which a job counts as lost")
    parser.add_argument("--only", default="", help="one trial: LAUNCHER,LOST,HOW,with|without; prints its story")
    args = parser.parse_args()
    if reason := why_not():
        print(f"node_loss: skipped: {reason}", file=sys.stderr)
        return 0
    if args.only:
        launcher, lost, how, replaced = args.only.split(",")
        print(trial(launcher, lost, how, replaced == "with", args.bound, keep=True))
        return 0
    alone_s = statistics.median(bare() for _ in range(3))
    rows: list[tuple[Any, ...]] = []
    for replaced in (True, False):
        for how in HOW:
            for lost in LOSSES:
                ours = [trial("ftrun", lost, how, replaced, args.bound, False) for _ in range(args.repeat)]
                peer = "-"
                if lost in PEER_LOSSES:
                    # A launcher that does not recover takes the whole time limit; one trial is enough.
                    theirs = [trial("torchrun", lost, how, replaced, args.bound, False)]
                    while theirs[0] is not None and len(theirs) < args.repeat:
                        theirs.append(trial("torchrun", lost, how, replaced, args.bound, False))
                    peer = cell(theirs, args.bound)
                rows.append(("with" if replaced else "without", how, lost, cell(ours, args.bound), peer))
                print(*rows[-1], sep=" | ", file=sys.stderr)
    head = ("replacement", "how", "node", "ftrun: loss to first step", "torchrun")
    body = table(head, rows) + (
        f"\n\nTwo hosts, one rank each; a replacement's agent starts {REPLACEMENT_S:g} s after the loss. Medians. "
        f"The same script without a launcher makes its first step {alone_s:.1f} s after its command, nearly all of it "
        f"torch's import: a replacement with nothing else to do would step after {REPLACEMENT_S + alone_s:.1f} s."
    )
    write("Loss of a node", f"python benchmarks/node_loss.py --repeat {args.repeat} --bound {args.bound:g}", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
