"""What the worker library adds to each training step, against the same loop without it.

The limit is the script under ``python``, in which nothing of ftcore runs. Under ``ftrun``, its plain loop is followed
by the hooks on torch alone; with ``steps`` each step can be retried, saved and paused. Runs alternate, and each counts
with its quickest block, because other work of the machine makes blocks slower only.

The more tensors a model has, the more there is to do between two steps: all are looked at, and what forward and
backward change is copied. So that time is measured for a deep model, too.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from launch import BIN, SCRIPTS
from results import table, write

KINDS = (
    ("limit: python, plain loop", "python", "plain"),
    ("ftrun, plain loop", "ftrun", "plain"),
    ("ftrun, loop with steps", "ftrun", "steps"),
)
DEEP = ("402 parameters, 300 buffers, AdamW: between two steps", "ftrun", "between")
DEEP_SHARE = 10
"""Steps of the deep model are so many times fewer."""

AIM_US = 20.0
STEP_US = 50_000.0


def measured(launcher: str, kind: str, blocks: int, size: int) -> float:
    """Microseconds of a step in the quickest block of a run."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as place:
        marks = Path(place) / "marks"
        env = os.environ | {"MARKS": str(marks), "XDG_STATE_HOME": place, "OMP_NUM_THREADS": "1"}
        command = [sys.executable] if launcher == "python" else [str(BIN / "ftrun"), "--standalone", "--job", "tiny"]
        script = [str(SCRIPTS / "tiny.py"), kind, str(blocks), str(size)]
        subprocess.run([*command, *script], env=env, cwd=place, check=True, capture_output=True)
        return min(map(float, marks.read_text().split())) / 1000


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} us ({min(times):.1f} to {max(times):.1f}, n={len(times)})"


def _judged(added: float) -> tuple[str, str, str]:
    verdict = f"< {AIM_US:g} us: {'yes' if added < AIM_US else 'no'}"
    return f"{added:.1f} us", f"{added / STEP_US:.3%}", verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each kind")
    parser.add_argument("--blocks", type=int, default=100, help="blocks of a run")
    parser.add_argument("--size", type=int, default=200, help="steps of a block")
    parser.add_argument("--dry", action="store_true", help="print, and do not change RESULTS.md")
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name, _, _ in KINDS}
    deep: list[float] = []
    for _ in range(args.repeat):
        for name, launcher, kind in KINDS:
            found[name].append(measured(launcher, kind, args.blocks, args.size))
        deep.append(measured(*DEEP[1:], args.blocks, max(1, args.size // DEEP_SHARE)))
    limit = statistics.median(found[KINDS[0][0]])
    rows = []
    for name, times in found.items():
        added = statistics.median(times) - limit
        rows.append((name, _spread(times), *(("", "", "") if name == KINDS[0][0] else _judged(added))))
    rows.append((DEEP[0], _spread(deep), *_judged(statistics.median(deep))))
    head = ("one rank", "a step", "added to a step", "of a step of 50 ms", "aim")
    saves = 'The loop with steps saves on request only; what a save costs is in "Saving and restoring state".'
    body = f"{table(head, rows)}\n\n{saves}"
    if args.dry:
        print(body)
    else:
        write("Overhead per step", "python benchmarks/overhead.py", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
