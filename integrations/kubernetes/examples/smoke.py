"""A small training of the smoke test: all ranks reduce a tensor at every step, and report it."""

import argparse
import time

import torch
import torch.distributed as dist

from ftcore.worker import report

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--pause", type=float, default=0.5, help="seconds between two steps")
args = parser.parse_args()

dist.init_process_group("gloo")
for step in range(1, args.steps + 1):
    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 0 and step % 20 == 0:
        print(f"step {step}: {int(total)} ranks", flush=True)
    report(step)
    time.sleep(args.pause)
dist.destroy_process_group()
