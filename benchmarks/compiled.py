"""Step time with ``torch.compile``: a compiled model and a compiled ``optimizer.step``, under ftrun and torchrun.

The hooks that count steps and time backward passes run in every step; the compiler must not trace them, nor break
graphs at them.
"""

import argparse
import itertools
import statistics
import sys

from launch import SCRIPTS, launched
from results import spread, table, write

SCRIPT = SCRIPTS / "compiling.py"
FORMS = {"plain": "nothing", "model": "the model", "optimizer": "optimizer.step"}


def step_us(launcher: str, steps: int, blocks: int) -> dict[str, float]:
    """Return microseconds per step by compiled part, from the fastest block: other processes disturb it least."""
    with launched(launcher, 1, 1, args=[str(steps), str(blocks)], script=SCRIPT) as job:
        assert job.await_one("done", 0) is not None, f"{launcher} did not get to the end"
        marks = job.marks()
    found = {}
    for form in FORMS:
        times = [mark.mono for mark in marks if mark.what == form]
        found[form] = min(b - a for a, b in itertools.pairwise(times)) / steps / 1000
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=20)
    args = parser.parse_args()
    step_us("torchrun", 1, 1)  # fills the compiler's cache
    seen: dict[str, list[dict[str, float]]] = {"ftrun": [], "torchrun": []}
    for _, launcher in itertools.product(range(args.runs), seen):  # interleaved: a busy minute hits both alike
        seen[launcher].append(step_us(launcher, args.steps, args.blocks))
    rows = []
    for form, what in FORMS.items():
        ours, theirs = ([run[form] for run in seen[launcher]] for launcher in ("ftrun", "torchrun"))
        ratio = statistics.median(ours) / statistics.median(theirs)
        rows.append((what, spread(ours, "us"), spread(theirs, "us"), f"{ratio:.2f}"))
    head = ("compiled", "step under ftrun", "step under torchrun", "ftrun / torchrun")
    how = "A model of three layers on one worker, AdamW; forward, backward and step. Of each run the quickest of"
    body = f"{table(head, rows)}\n\n{how} {args.blocks} blocks of {args.steps} steps."
    write("Compiled steps (1 node x 1 worker)", "python benchmarks/compiled.py", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
