"""A link between two hosts is cut: time to its detection and to the next step, for ftrun and torchrun.

Hosts are network namespaces with their own processes (``tests/chaos/cluster``). Three train DDP over gloo, one worker
each, with ``--nnodes 2:3`` and the default time constants; the link between two of them is cut, ``both ways`` or ``one
way``, while each reaches the third one, etcd and the master. No process ends and no node is lost. torchrun's rendezvous
runs on the first training host, which reaches both ends of the cut.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import time
from pathlib import Path

import attrs
from launch import BIN
from results import spread, table, write

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / folder) for folder in ("", "chaos/ftrun", "chaos/cluster")]

from fleet import Fleet, fleet  # noqa: E402
from harness import JOBS, wait_until  # noqa: E402
from hosts import Host, environ, lan, why_not  # noqa: E402

HOSTS = 6
TRAINING = ("h4", "h5", "h6")
PAIR = ("h5", "h6")
PORT = 29400
STEPS = 10


@attrs.frozen
class Outage:
    """Result of a cut.

    Args:
        found_s: seconds from the cut to the decision.
        outage_s: seconds from the cut to the first step of all ranks of the next round.
        script_s: of these, from the start of its workers to that step: the script's own imports and connections.
        left: the node that left.
    """

    found_s: float
    outage_s: float
    script_s: float
    left: str


def cut(one: Host, other: Host, both: bool) -> int:
    """Cut the link; return the wall time in nanoseconds."""
    one.deafen(other)
    if both:
        other.deafen(one)
    return time.time_ns()


def measure(both: bool) -> Outage:
    """Run one job under ftrun."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as name, fleet(Path(name), HOSTS) as job:
        runs = {}
        for host in TRAINING:
            runs[host] = job.start_on(job[host], "--nnodes", "2:3", script="ddp.py")
            job.wait("node.joined", node=host)
        job.stepped(1, nodes=len(TRAINING))
        job.steps_on(0, STEPS)
        at = cut(job[PAIR[0]], job[PAIR[1]], both)
        judged = job.wait("standstill.judged", verdict="hang", cause="link-cut")
        stepped = job.train_again(judged.seq, 2)
        left = _left(job)
        runs.pop(left).end()
        job.end(*runs.values())
        started = job.wait("round.started", judged.seq)
        script_s = (stepped.time - started.time) / 1e9
        return Outage((judged.time - at) / 1e9, (stepped.time - at) / 1e9, script_s, left)


def _left(job: Fleet) -> str:
    (left,) = set(TRAINING) - {host.name for host in job.world()}
    return left


def torchrun(both: bool, bound_s: float) -> float | None:
    """Return seconds from the cut to the next step under torchrun; None: no step followed."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as name, lan(HOSTS, Path(name)) as where:
        place = Path(name)
        hosts = [where[host] for host in TRAINING]
        command = [str(BIN / "torchrun"), "--nnodes", "3", "--rdzv-backend", "c10d", "--max-restarts", "100"]
        command += ["--rdzv-endpoint", f"{hosts[0].name}:{PORT}", str(JOBS / "ddp.py")]
        for host in hosts:
            with (place / f"{host.name}.log").open("ab") as log:
                host.spawn(command, cwd=place, stdout=log, stderr=log, env=environ({"OMP_NUM_THREADS": "1"}))
        steps = place / "step.0"

        def stepped() -> int:
            with contextlib.suppress(OSError, ValueError):
                return int(steps.read_text())
            return 0

        wait_until(lambda: stepped() >= STEPS, "the first steps")
        at = cut(where[PAIR[0]], where[PAIR[1]], both)
        time.sleep(1.0)  # steps that were under way
        known = steps.stat().st_mtime_ns
        while (elapsed_s := (time.time_ns() - at) / 1e9) < bound_s:
            if steps.stat().st_mtime_ns != known:
                return elapsed_s
            time.sleep(0.05)
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="trials of each kind")
    parser.add_argument("--bound", type=float, default=60.0, help="seconds after which a job under torchrun is lost")
    args = parser.parse_args()
    if reason := why_not():
        print(f"links: skipped: {reason}", file=sys.stderr)
        return 0
    rows = []
    for both in (True, False):
        found = []
        for _ in range(args.repeat):
            with contextlib.redirect_stdout(io.StringIO()):  # the story of each job
                found.append(measure(both))
            print(found[-1], file=sys.stderr)
        peer = torchrun(both, args.bound)
        rows.append(
            (
                "both ways" if both else "one way",
                spread([one.found_s for one in found], "s"),
                spread([one.outage_s for one in found], "s"),
                spread([one.script_s for one in found], "s"),
                ", ".join(sorted({one.left for one in found})),
                f"not within {args.bound:.0f} s" if peer is None else f"{peer:.1f} s",
            )
        )
    head = (
        "cut",
        "ftrun: detected after",
        "next step after",
        "of which in the script",
        "node that left",
        "torchrun: next step",
    )
    day = time.strftime("%Y-%m-%d", time.gmtime())
    body = table(head, rows) + (
        f"\n\n{day}. Three hosts, one rank each; the cut link is between {' and '.join(PAIR)}. Time constants are the "
        "defaults: a kernel must get no answer for 15 s. The job continues with two hosts. Medians, smallest and "
        "largest; torchrun once each, and it waits for the timeout of the process group."
    )
    write("A cut link", f"python benchmarks/links.py --repeat {args.repeat} --bound {args.bound:g}", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
