"""Outage after the loss of a node under Slurm, until the first step of all ranks: ftcore, and torchrun with requeue.

A real Slurm on four hosts (network namespaces, ``integrations/slurm/tests``); three nodes train, one worker each, the
fourth is free. A node loses its power: the last one of the job, or the host of the batch script. ftcore's job was
written by ``ftctl slurm script --nodes 3 --spares 1``; torchrun's is ``srun torchrun`` in a batch script with
``--requeue``. Slurm's own times are short here: a silent node is down after ten seconds, and a requeued job waits ten
seconds instead of 120, which is to torchrun's advantage.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from launch import BIN, SCRIPT
from results import spread, table, write

ROOT = Path(__file__).parents[1]
sys.path[:0] = [
    str(ROOT / folder) for folder in ("integrations/slurm/tests", "tests/chaos/ftrun", "tests/chaos/cluster")
]

from harness import wait_until  # noqa: E402
from slurm_cluster import Submitted, slurm  # noqa: E402

NODES, BOUND_S = 3, 240.0
LAUNCHERS, LOSSES = ("ftcore", "torchrun"), ("a node", "the batch host")
TORCHRUN = """\
#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=out
srun --kill-on-bad-exit=1 {torchrun} --nnodes {nodes} --nproc-per-node 1 --rdzv-backend c10d \\
    --rdzv-endpoint "$SLURMD_NODENAME:29400" --rdzv-id "$SLURM_JOB_ID-$SLURM_RESTART_COUNT" {script}
"""


def environment(place: Path) -> list[str]:
    """Variables of both jobs."""
    return [f"MARKS={place}/marks", "OMP_NUM_THREADS=1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"]


def marks(place: Path, after: int) -> dict[int, int]:
    """When each rank's process completed its first step, for steps after a time."""
    path, found = place / "marks", dict[int, int]()
    for line in path.read_text().splitlines() if path.exists() else []:
        what, rank, _, mono = line.split()
        if what == "stepped" and int(mono) > after:
            found.setdefault(int(rank), int(mono))
    return found


def trial(launcher: str, loss: str) -> float | None:
    """Seconds from the loss to the first steps of all ranks; None: there were none in time."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as name, slurm(Path(name)) as cluster:
        place = Path(name) / "job"
        if launcher == "ftcore":
            flags = ["--nodes", str(NODES), "--spares", "1"]
            job = Submitted(cluster, place, flags, [str(SCRIPT)], environment(place))
            number = job.number
        else:
            place.mkdir()
            (place / "job.sbatch").write_text(TORCHRUN.format(nodes=NODES, torchrun=BIN / "torchrun", script=SCRIPT))
            argv = ("env", *environment(place), "sbatch", "--parsable", "job.sbatch")
            number = cluster.done(*argv, cwd=place).strip()
        wait_until(lambda: len(marks(place, 0)) == NODES, "the first steps")
        time.sleep(5.0)  # the spare warms up, standbys start, the training goes on
        batch = cluster.field(number, "BatchHost")
        train = job.world() if launcher == "ftcore" else [host for host in cluster.nodes if host.processes(SCRIPT.name)]
        victim = next(host for host in train if (host.name == batch) == (loss == "the batch host"))
        lost = time.monotonic_ns()
        victim.power_off()
        while (time.monotonic_ns() - lost) / 1e9 < BOUND_S:
            if len(found := marks(place, lost + 1_000_000_000)) >= NODES:
                return (max(found.values()) - lost) / 1e9
            time.sleep(0.02)
        print((place / "out").read_text()[-3000:], file=sys.stderr)
        return None


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--loss", choices=LOSSES, help="measure this loss alone")
    args = parser.parse_args()
    times, rows = args.times, []
    for loss in [args.loss] if args.loss else LOSSES:
        medians = {}
        for launcher in LAUNCHERS:
            found = [trial(launcher, loss) for _ in range(times)]
            known = [seconds for seconds in found if seconds is not None]
            medians[launcher] = statistics.median(known) if known else float("nan")
            ratio = medians[launcher] / medians[LAUNCHERS[0]]
            rows.append((loss, launcher, spread(known, "s") if known else "none in time", f"{ratio:.1f}"))
            print(*rows[-1], file=sys.stderr)
    body = time.strftime("%Y-%m-%d. ") + f"{NODES} nodes and a free one, SlurmdTimeout 10 s, cred_expire 10 s.\n\n"
    body += table(("power lost by", "launcher", "until all ranks step again", "ratio"), rows)
    alone = f" --loss '{args.loss}'" if args.loss else ""
    write("Loss of a node under Slurm", f"python benchmarks/slurm_loss.py --times {times}{alone}", body)


if __name__ == "__main__":
    main()
