"""Resuming in the middle of an epoch: how soon the first batch is there, and what the order of the samples costs.

The peer is what a script does without ftcore: torch's ``RandomSampler`` with the seed of the epoch, read up to the
position. It is measured at ten million samples: a billion would take a hundred times the memory that is printed.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice

from results import spread, table, write

REPEATS = 3
BATCH = 1024


class Range:
    """Samples that are their own numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> int:
        return number


def ours(size: int) -> Callable[[], object]:
    """The first batch of a loader that continues in the middle of an epoch."""
    from ftcore.batch import RankBatch
    from ftcore.data import ElasticLoader

    batch = RankBatch(BATCH, BATCH, 0, (range(BATCH),), 1.0, 1.0)

    def first() -> object:
        loader = ElasticLoader(Range(size), batch, seed=1)
        loader.load_state_dict({**loader.state_dict(), "position": size // 2})
        return next(iter(loader))

    return first


def torchs(size: int) -> Callable[[], object]:
    """The first batch after the middle of an epoch of ``RandomSampler``."""
    import torch
    from torch.utils.data import DataLoader, RandomSampler

    def first() -> object:
        sampler = RandomSampler(range(size), generator=torch.Generator().manual_seed(1))
        numbers = islice(iter(sampler), size // 2, size // 2 + BATCH)
        return next(iter(DataLoader(Range(size), batch_size=BATCH, sampler=list(numbers))))

    return first


def measure(kind: str, size: int) -> tuple[list[float], int]:
    """Seconds of the first batch in new processes, and MiB that it took beyond the imports."""
    seconds, mib = [], []
    for _ in range(REPEATS):
        argv = [sys.executable, __file__, kind, str(size)]
        out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
        seconds.append(float(out[0]))
        mib.append(int(out[1]))
    return seconds, max(mib)


def one(kind: str, size: int) -> None:
    """Measure once, in this process."""
    first = {"ours": ours, "torch": torchs}[kind](size)
    {"ours": ours, "torch": torchs}[kind](100_000)()  # imports and first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    first()
    print(time.perf_counter() - begun, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)


def main() -> int:
    if len(sys.argv) == 3:
        one(sys.argv[1], int(sys.argv[2]))
        return 0
    rows = []
    base = 0.0
    for kind, name, size in (
        ("torch", "torch's RandomSampler, read up to the position", 10**7),
        ("ours", "ElasticLoader", 10**7),
        ("ours", "ElasticLoader", 10**9),
    ):
        seconds, mib = measure(kind, size)
        base = base or statistics.median(seconds)
        ratio = f"{statistics.median(seconds) / base:.4f}"
        rows.append((name, f"{size:,}", spread(seconds, "ms", 1e3), ratio, f"{mib} MiB"))
    body = (
        time.strftime("%Y-%m-%d", time.gmtime())
        + f". The first batch of {BATCH} samples, in the middle of an epoch.\n\n"
    )
    body += table(("way", "samples", "first batch", "ratio", "memory"), rows)
    write("Resuming in the middle of an epoch", "python benchmarks/samples.py", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
