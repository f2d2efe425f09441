"""Saving and restoring registered state: how long training is blocked, and how soon state is back after a crash.

One rank trains (``scripts/saves.py``), saves at every step in each way, is killed, and restores in each way: ftcore's
memory, ``torch.save``, ``torch.distributed.checkpoint`` synchronously and asynchronously. The limit is the copy of so
many bytes by one thread.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import table, write

SAVES = Path(__file__).with_name("scripts") / "saves.py"
LIMIT_S = 900.0


def run(gib: float, steps: int, batch: int, threads: int, ways: str = "all") -> list[dict[str, Any]]:
    """Run the script under ftrun; return the lines that it wrote."""
    with tempfile.TemporaryDirectory(prefix="saves-", dir=Path.home()) as root:
        out = Path(root) / "out.jsonl"
        env = os.environ | {"XDG_STATE_HOME": root, "OMP_NUM_THREADS": str(threads), "OUT": str(out)}
        about = (str(gib), str(steps), str(batch), ways)
        argv = (sys.executable, "-m", "ftcore.cli.ftrun", "--standalone", str(SAVES), *about)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return [json.loads(line) for line in out.read_text().splitlines()]


def rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of the table for one run."""
    copy_s = next(line["copy_s"] for line in found if "copy_s" in line)
    plain = [line["step_s"] for line in found if line["way"].startswith("nothing")]
    plain_s = sum(plain) / len(plain)
    loads = {line["way"].replace("load", "save"): line["load_s"] for line in found if "load_s" in line}
    made: list[tuple[str, ...]] = [("one thread's copy", "", f"{copy_s:.3f} s", "1.0", "")]
    for line in found:
        if "step_s" not in line or line["way"].startswith("nothing"):
            continue
        blocked = line["step_s"] - plain_s
        load_s = loads.get(line["way"])
        made.append(
            (
                line["way"],
                f"{line['first_s'] * 1e3:.1f} / {line['call_s'] * 1e3:.1f} ms",
                f"{blocked:.3f} s",
                f"{blocked / copy_s:.1f}",
                "" if load_s is None else f"{load_s:.3f} s",
            )
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0, 4.0], help="sizes of the state")
    parser.add_argument("--steps", type=int, default=8)
    args = parser.parse_args()
    parts = [
        time.strftime("%Y-%m-%d", time.gmtime())
        + ". One rank, AdamW; a save at every step. *Blocked*: a step with a save minus one without."
    ]
    head = ("way", "first call / median call", "blocked a save", "times the copy", "state back after SIGKILL")
    for gib in args.gib:
        found = run(gib, args.steps, batch=64, threads=1)
        plain_s = next(line["step_s"] for line in found if line["way"] == "nothing")
        parts.append(f"{gib:g} GiB of state, one core free, a step of {plain_s:.2f} s:\n\n" + table(head, rows(found)))
        for batch, threads, cores in ((1, 1, "one core free"), (64, 2, "no core free"), (1, 2, "no core free")):
            found = run(gib, args.steps, batch, threads, "ftcore")
            plain_s = next(line["step_s"] for line in found if line["way"] == "nothing")
            short = tuple(row[:4] for row in rows(found))
            parts.append(f"{gib:g} GiB, {cores}, a step of {plain_s:.2f} s:\n\n" + table(head[:4], short))
    command = " ".join(["python benchmarks/checkpoints.py", *sys.argv[1:]])
    write("Saving and restoring state", command, "\n\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
