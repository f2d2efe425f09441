"""``python -m ftcore.sim``: run seeds of the protocol simulator (``protocol/``)."""

import argparse
import itertools
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor

from ftcore.sim.protocol.simulation import Result, collecting_between, run_protocol

SHARE = 5
"""Seeds per task of a worker process."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the requested seeds; returns 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m ftcore.sim", description="Simulate a job, message by message.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--count", type=int, default=1, help="number of consecutive seeds (default 1)")
    parser.add_argument("--minutes", type=float, default=0.0, help="continue with further seeds for this many minutes")
    parser.add_argument("--nodes", type=int, default=None, help="nodes of the job (default: drawn from the seed)")
    parser.add_argument("--jobs", type=int, default=1, help="number of worker processes (default 1)")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    args = parser.parse_args(argv)
    begun = time.monotonic()
    seeds = itertools.takewhile(
        lambda seed: seed < args.seed + args.count or time.monotonic() - begun < 60 * args.minutes,
        itertools.count(args.seed),
    )
    if args.trace or args.jobs == 1:
        results: Iterator[Result] = (
            run_protocol(seed, nodes=args.nodes, show=print if args.trace else None) for seed in seeds
        )
    else:
        results = _shared(seeds, args.nodes, args.jobs)
    ran = failed = 0
    with collecting_between():
        for result in results:
            ran, failed = ran + 1, failed + bool(result.violation)
            if args.trace or result.violation or args.count == 1:
                print(shown(result), flush=True)
            if sys.stderr.isatty() and ran % SHARE == 0:
                print(f"\r{ran} schedules, {failed} with a violation", end="", file=sys.stderr)
    took = time.monotonic() - begun
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    print(f"{ran} schedules in {took:.1f} s, {failed} with a violation", file=sys.stderr)
    return 1 if failed else 0


def _shared(seeds: Iterator[int], nodes: int | None, jobs: int) -> Iterator[Result]:
    """The results of seeds in their order, computed by several processes."""
    with ProcessPoolExecutor(jobs) as pool:
        waiting: deque[Future[list[Result]]] = deque()
        while some := list(itertools.islice(seeds, SHARE)):
            waiting.append(pool.submit(_simulate, some, nodes))
            if len(waiting) > 4 * jobs:
                yield from waiting.popleft().result()
        for rest in waiting:
            yield from rest.result()


def _simulate(seeds: list[int], nodes: int | None) -> list[Result]:
    return [run_protocol(seed, nodes=nodes) for seed in seeds]


def shown(result: Result) -> str:
    """A result as text, with the command to reproduce it."""
    lines = [
        f"seed {result.seed}: {result.outcome} after {result.virtual_s:.0f} virtual s; {result.events} events, "
        f"{result.frames} frames, {result.faults} faults, {result.incidents} incidents, {result.rounds} rounds, "
        f"{result.terms} terms; digest {result.digest}"
    ]
    if result.reason:
        lines.append(f"  {result.reason}")
    if result.violation:
        lines += [f"  VIOLATION {result.violation}", f"  reproduce: python -m ftcore.sim --seed {result.seed} --trace"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
