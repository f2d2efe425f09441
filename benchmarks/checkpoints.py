"""Saving and restoring registered state: how long training is blocked, and how soon state is back after a crash.

One rank trains (``scripts/saves.py``), saves at every step in each way, is killed, and restores in each way: ftcore's
memory, ``torch.save``, ``torch.distributed.checkpoint`` synchronously and asynchronously. The limit is the copy of so
many bytes by one thread; with ``--device cuda`` from the device into page-locked memory.
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
HEAD = ("way", "first call / median call", "blocked a save", "times the copy", "state back after SIGKILL")


def run(
    gib: float, steps: int, batch: int, threads: int, ways: str = "all", device: str = "cpu"
) -> list[dict[str, Any]]:
    """Run the script under ftrun; return the lines that it wrote."""
    with tempfile.TemporaryDirectory(prefix="saves-", dir=Path.home()) as root:
        out = Path(root) / "out.jsonl"
        env = os.environ | {"XDG_STATE_HOME": root, "OMP_NUM_THREADS": str(threads), "OUT": str(out)}
        about = (str(gib), str(steps), str(batch), ways, device)
        argv = (sys.executable, "-m", "ftcore.cli.ftrun", "--standalone", str(SAVES), *about)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        return [json.loads(line) for line in out.read_text().splitlines()]


def rows(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of the table for one run."""
    limit, copy_s = next((line["way"], line["copy_s"]) for line in found if "copy_s" in line)
    plain = [line["step_s"] for line in found if line["way"].startswith("nothing")]
    plain_s = sum(plain) / len(plain)
    loads = {line["way"].replace("load", "save"): line["load_s"] for line in found if "load_s" in line}
    made: list[tuple[str, ...]] = [(limit, "", f"{copy_s:.3f} s", "1.0", "")]
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


def on_cpu(gib: float, steps: int) -> list[str]:
    """Parts of the section for a state in the memory of the host."""
    found = run(gib, steps, batch=64, threads=1)
    parts = [f"{gib:g} GiB of state, one core free, a step of {plain(found):.2f} s:\n\n" + table(HEAD, rows(found))]
    for batch, threads, cores in ((1, 1, "one core free"), (64, 2, "no core free"), (1, 2, "no core free")):
        found = run(gib, steps, batch, threads, "ftcore")
        short = tuple(row[:4] for row in rows(found))
        parts.append(f"{gib:g} GiB, {cores}, a step of {plain(found):.2f} s:\n\n" + table(HEAD[:4], short))
    return parts


def on_cuda(gib: float, steps: int) -> list[str]:
    """Parts of the section for a state on a device, with steps longer than the copy, and with short ones."""
    found = run(gib, steps, batch=16384, threads=1, device="cuda")
    parts = [f"{gib:g} GiB of state, a step of {plain(found) * 1e3:.0f} ms:\n\n" + table(HEAD, rows(found))]
    found = run(gib, 4 * steps, 64, 1, "ftcore", "cuda")
    short = tuple(row[:4] for row in rows(found))
    parts.append(f"{gib:g} GiB, a step of {plain(found) * 1e3:.1f} ms:\n\n" + table(HEAD[:4], short))
    return parts


def plain(found: list[dict[str, Any]]) -> float:
    """Seconds of a step without a save."""
    return float(next(line["step_s"] for line in found if line["way"] == "nothing"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, nargs="+", default=[1.0, 4.0], help="sizes of the state")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = parser.parse_args()
    head = time.strftime("%Y-%m-%d", time.gmtime())
    where = ""
    if args.device == "cuda":
        import torch

        head, where = f"{head}, {torch.cuda.get_device_name()}, torch {torch.__version__}", " on a GPU"
    parts = [f"{head}. One rank, AdamW; a save at every step. *Blocked*: a step with a save minus one without."]
    for gib in args.gib:
        parts += on_cuda(gib, args.steps) if where else on_cpu(gib, args.steps)
    command = " ".join(["python benchmarks/checkpoints.py", *sys.argv[1:]])
    write(f"Saving and restoring state{where}", command, "\n\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
