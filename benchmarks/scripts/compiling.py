"""A training loop whose model, or whose optimizer's step, is compiled: a mark after every block of steps.

Usage: compiling.py STEPS BLOCKS. Each line of the file in ``MARKS`` is ``what rank pid monotonic_ns``.
"""

import os
import sys
import time

import torch

STEPS, BLOCKS = int(sys.argv[1]), int(sys.argv[2])
WARM_UP = 20

torch.manual_seed(0)
torch.set_num_threads(1)
marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark(what: str) -> None:
    os.write(marks, f"{what} {os.environ['RANK']} {os.getpid()} {time.monotonic_ns()}\n".encode())


def train(what: str) -> None:
    """Blocks of steps, once nothing is compiled any more."""
    layers = [
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 1),
    ]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    forward = torch.compile(model) if what == "model" else model
    step = torch.compile(optimizer.step) if what == "optimizer" else optimizer.step
    data = torch.randn(16, 64)

    def block(steps: int) -> None:
        for _ in range(steps):
            forward(data).square().mean().backward()
            step()
            optimizer.zero_grad()

    block(WARM_UP)
    mark(what)
    for _ in range(BLOCKS):
        block(STEPS)
        mark(what)


for what in ("plain", "model", "optimizer"):
    train(what)
mark("done")
while True:
    time.sleep(1.0)
