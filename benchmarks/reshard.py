"""Restoring sharded state with another number of ranks: from ftcore's files, and with torch.distributed.checkpoint.

Four ranks train with FSDP2 and AdamW (``scripts/sharded.py``) and save with both; then three ranks restore, several
times. All ranks are on one machine, and the files are in its page cache.
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

from results import spread, table, write

SCRIPT = Path(__file__).with_name("scripts") / "sharded.py"
LIMIT_S = 900.0
SAVERS, LOADERS = 4, 3


def run(root: Path, ranks: int, gib: float, mode: str) -> None:
    """Run the script under ftrun."""
    env = os.environ | {"XDG_STATE_HOME": str(root), "OMP_NUM_THREADS": "1", "OUT": str(root / "out.jsonl")}
    flags = ("--nproc-per-node", str(ranks), "--job", "reshard", "--checkpoints", str(root / "saved"))
    argv = (sys.executable, "-m", "ftcore.cli.ftrun", *flags, str(SCRIPT), str(gib), str(root / "dcp"), mode)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def persisted(root: Path) -> list[dict[str, Any]]:
    """The shards that the keeper has written."""
    argv = (sys.executable, "-m", "ftcore.cli.ftctl", "--job", "reshard", "events", "--format", "json")
    env = os.environ | {"XDG_STATE_HOME": str(root)}
    lines = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    found = (json.loads(line) for line in lines)
    return [each["data"] for each in found if each["type"] == "shard.persisted"]


def plain_copy_s(root: Path, size: int) -> float:
    """Seconds to write so many bytes to a file in pieces of 16 MiB, and to fsync it."""
    piece, path = bytes(16 << 20), root / "plain"
    begun = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(max(1, size // len(piece))):
            file.write(piece)
        os.fsync(file.fileno())
    took = time.perf_counter() - begun
    path.unlink()
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of the state of all ranks together")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reshard-", dir=Path.home()) as name:
        root = Path(name)
        run(root, SAVERS, args.gib, "save")
        shards = [each for each in persisted(root) if each["shard"]["step"] == 1]
        copies = [plain_copy_s(root, each["bytes"]) for each in shards]
        for _ in range(args.times):
            run(root, LOADERS, args.gib, "load")
        found = [json.loads(line) for line in (root / "out.jsonl").read_text().splitlines()]
    ways = {way: [each for each in found if each["way"] == way] for way in ("ftcore, storage", "dcp.load")}
    peer = sorted(each["load_s"] for each in ways["dcp.load"])[len(ways["dcp.load"]) // 2]
    rows = []
    for way, lines in ways.items():
        times, grown = [each["load_s"] for each in lines], [each["grown"] for each in lines]
        middle = sorted(times)[len(times) // 2]
        rows.append((way, spread(times, "s"), f"{middle / peer:.2f}", spread(grown, "")))
    head = ("way", f"{SAVERS} ranks saved, {LOADERS} restore", "times dcp.load", "peak memory over the shard's size")
    size, wrote_s = sum(each["bytes"] for each in shards), sum(each["seconds"] for each in shards)
    body = "\n\n".join(
        (
            time.strftime("%Y-%m-%d", time.gmtime())
            + f". FSDP2 and AdamW, {args.gib:g} GiB of state, gloo. The slowest rank; the growth of a rank's memory "
            "while it restores, as a share of its own state.",
            table(head, rows),
            f"The keeper wrote {size / 2**30:.2f} GiB in {len(shards)} shards, one after the other, with checksums "
            f"and fsync, while dcp.save wrote as well: {size / 2**20 / wrote_s:.0f} MiB/s. A plain write and fsync of "
            f"as many bytes: {size / 2**20 / sum(copies):.0f} MiB/s ({wrote_s / sum(copies):.2f} times as fast).",
        )
    )
    write("Restoring with another number of ranks", " ".join(["python benchmarks/reshard.py", *sys.argv[1:]]), body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
