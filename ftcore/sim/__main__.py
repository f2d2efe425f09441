"""``python -m ftcore.sim``: simulate seeds in protocol fidelity; see ``protocol.py``."""

import argparse
import sys
import time
from collections.abc import Sequence

from ftcore.sim.protocol import Result, run_protocol


def main(argv: Sequence[str] | None = None) -> int:
    """Run the seeds asked for; 1 if something happened that must never happen."""
    parser = argparse.ArgumentParser(prog="python -m ftcore.sim", description="Simulate a job, message by message.")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one after the other (default 1)")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with further seeds for so long")
    parser.add_argument("--nodes", type=int, default=None, help="nodes of the job (default: drawn from the seed)")
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    args = parser.parse_args(argv)
    begun, seed, failed = time.monotonic(), args.seed, 0
    while seed < args.seed + args.count or time.monotonic() - begun < 60 * args.minutes:
        result = run_protocol(seed, nodes=args.nodes, show=print if args.trace else None)
        failed += bool(result.violation)
        if args.trace or result.violation or args.count == 1:
            print(shown(result), flush=True)
        seed += 1
    took = time.monotonic() - begun
    print(f"{seed - args.seed} schedules in {took:.1f} s, {failed} with a violation", file=sys.stderr)
    return 1 if failed else 0


def shown(result: Result) -> str:
    """A result for people, with the command to see it again."""
    lines = [
        f"seed {result.seed}: {result.outcome} after {result.virtual_s:.0f} virtual s; {result.events} events, "
        f"{result.frames} frames, {result.faults} faults, {result.incidents} incidents, {result.rounds} rounds, "
        f"{result.terms} terms; digest {result.digest}"
    ]
    if result.reason:
        lines.append(f"  {result.reason}")
    if result.violation:
        lines += [f"  VIOLATION {result.violation}", f"  see it: python -m ftcore.sim --seed {result.seed} --trace"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
