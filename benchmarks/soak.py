"""Soak test: a day's faults of a large job in twenty minutes, on four hosts and an etcd of three members.

The faults are those of ``tests/chaos/cluster`` (five minutes in CI); hosts are network namespaces, so it needs root.
Goodput is compared with the same training without faults, at the beginning of the same run.
"""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "chaos" / "ftrun"), str(TESTS / "chaos" / "cluster")]

from fleet import fleet  # noqa: E402  (the tests' harness)
from results import table, write  # noqa: E402
from storm import FAULTS_A_DAY, HOSTS, KINDS, Storm  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="duration in minutes (default: 20)")
    parser.add_argument("--faults", type=int, default=FAULTS_A_DAY, help=f"number of faults (default: {FAULTS_A_DAY})")
    parser.add_argument("--seed", type=int, default=1, help="seed of the fault plan (default: 1)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ftcore-soak-") as place, fleet(Path(place) / "soak", HOSTS) as job:
        outcome = Storm(job, 60 * args.minutes, args.faults, args.seed).run()
    stopped = defaultdict(list)
    for name, seconds in outcome.stopped_s:
        stopped[name].append(seconds)
    rows = [
        (name, count, f"{statistics.median(stopped[name]):.2f} s", f"{max(stopped[name]):.2f} s", _ours(name))
        for name, count in outcome.faults.items()
    ]
    head = ("fault", "times", "longest wait for a step, median", "worst", "training must not stop")
    count = sum(outcome.faults.values())
    body = (
        f"{table(head, rows)}\n\n{HOSTS} hosts, {count} faults in {args.minutes:g} minutes (seed {args.seed}): "
        f"{outcome.steps} steps in {outcome.rounds} rounds, goodput {outcome.goodput:.1%} of the same training "
        f"without faults. Violated invariants: {len(outcome.violations)}."
    )
    write("Soak", f"python benchmarks/soak.py --minutes {args.minutes:g} --seed {args.seed}", body)
    for violation in outcome.violations:
        print(violation, file=sys.stderr)
    return 1 if outcome.violations else 0


def _ours(name: str) -> str:
    return "yes" if KINDS[name].ours else ""


if __name__ == "__main__":
    sys.exit(main())
