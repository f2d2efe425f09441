"""Adds up samples in integers over gloo, and writes down what every step made of them: nothing can be lost unseen.

A step has a fixed number of samples, shared out among as many ranks as there are, so the state after a step does not
depend on the world's size: ``states`` gives it without any training. Rank 0 saves every few steps, each rank writes a
line for each step: ``when round step state`` (nanoseconds of the machine's own clock, so lines of all ranks compare).
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SAMPLES, SAVE_EVERY, MODULUS = 24, 10, (1 << 31) - 1


def worth(sample: int) -> int:
    """What a sample adds: some number below 2**31 that no other sample near it has."""
    return (sample * 2_654_435_761 + 40_503) % MODULUS


def after(state: int, total: int) -> int:
    """The state after a step whose samples are worth ``total``."""
    return (state * 31 + total) % MODULUS


def states() -> Iterator[int]:
    """The state after 0, 1, 2, ... steps, as it must be."""
    state, step = 0, 0
    while True:
        yield state
        state = after(state, sum(worth(step * SAMPLES + i) for i in range(SAMPLES)))
        step += 1


def main() -> None:
    import torch
    import torch.distributed as dist

    from ftcore.worker import report

    here, pace_s = Path.cwd(), float(sys.argv[1]) if len(sys.argv) > 1 else 0.02
    dist.init_process_group("gloo")
    rank, world, round_ = dist.get_rank(), dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    ledger = os.open(here / f"ledger.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    saved, step, state = here / "saved", 0, 0
    if saved.exists():
        step, state = map(int, saved.read_text().split())
    while True:
        finish = torch.tensor(int((here / "finish").exists()))
        dist.all_reduce(finish, dist.ReduceOp.MAX)
        if finish:
            break
        time.sleep(pace_s)
        total = torch.tensor(sum(worth(step * SAMPLES + i) for i in range(rank, SAMPLES, world)))
        dist.all_reduce(total)
        step, state = step + 1, after(state, int(total))
        os.write(ledger, f"{time.monotonic_ns()} {round_} {step} {state}\n".encode())
        if rank == 0 and step % SAVE_EVERY == 0:
            (here / "saved.new").write_text(f"{step} {state}")
            (here / "saved.new").replace(saved)
        report(step)
    dist.destroy_process_group()
    print(f"rank {rank} ends at step {step} with {state}", flush=True)


if __name__ == "__main__":
    main()
