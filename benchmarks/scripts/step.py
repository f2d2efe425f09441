"""A DDP script with a small model: marks when its process group was ready and when its first step was completed.

Usage: step.py [MIB [every]]. It allocates that much memory; with ``every`` it also marks each later step. Each line of
the file in ``MARKS`` is ``what rank pid monotonic_ns``; a line is one write, so ranks do not mix.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark(what: str) -> None:
    os.write(marks, f"{what} {os.environ['RANK']} {os.getpid()} {time.monotonic_ns()}\n".encode())


mark("begun")
ballast = bytearray(int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 0)
for page in range(0, len(ballast), 4096):
    ballast[page] = 1
dist.init_process_group("gloo")
mark("group")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())
first, every = True, "every" in sys.argv[2:]
while True:
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if first:
        mark("stepped")
        first = False
    elif every:
        mark("step")
    time.sleep(0.02)
