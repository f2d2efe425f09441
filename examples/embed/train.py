"""A script for the launchers beside it: fits a line on all ranks, and resumes from its own checkpoint.

It finds its world in torchrun's variables, and reports each step to ftcore.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ftcore import worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    parser.add_argument("--checkpoint", type=Path, default=Path("line.pt"))
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    weights, first = torch.zeros(2), 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        weights, first = saved["weights"], saved["step"]
    dist.barrier()  # all ranks have read it
    print(f"rank {rank} of {dist.get_world_size()}, process {os.getpid()}: begins after step {first}")
    for step in range(first + 1, args.steps + 1):
        random = torch.Generator().manual_seed(step * 1000 + rank)
        x = torch.rand(64, generator=random) * 2 - 1
        error = weights[0] * x + weights[1] - (3.0 * x + 1.0)
        gradient = torch.stack(((error * x).mean(), error.mean()))
        dist.all_reduce(gradient)
        weights = weights - gradient / dist.get_world_size()
        if rank == 0:
            draft = args.checkpoint.with_suffix(".draft")
            torch.save({"weights": weights, "step": step}, draft)
            draft.replace(args.checkpoint)
        worker.report(step, loss=float((error**2).mean()))
        time.sleep(args.pause)
    dist.destroy_process_group()
    if rank == 0:
        print(f"after {args.steps} steps: y = {weights[0]:.3f} x + {weights[1]:.3f}")


if __name__ == "__main__":
    main()
