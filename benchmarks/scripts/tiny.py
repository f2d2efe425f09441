"""A training step of well under a millisecond: what is added to each step is seen.

Arguments: ``plain`` or ``steps`` (with registered state, which is saved on request only), the number of blocks, and the
steps of a block. The time of a step in each block, in nanoseconds, is written to the file that MARKS names.
"""

import os
import sys
import time
from pathlib import Path

import torch

import ftcore.worker as ft


def main() -> None:
    kind, blocks, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, y = torch.randn(16, 32), torch.randn(16, 1)

    def compute() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

    times: list[float] = []
    if kind == "steps":
        job = ft.join()
        job.register(net=net, optimizer=optimizer)
        begun = time.perf_counter_ns()
        for step in job.steps(until=blocks * size, save_every=0):
            with step:
                compute()
            if step.number % size == 0:
                times.append((time.perf_counter_ns() - begun) / size)
                begun = time.perf_counter_ns()
    else:
        for _ in range(blocks):
            begun = time.perf_counter_ns()
            for _ in range(size):
                compute()
            times.append((time.perf_counter_ns() - begun) / size)
    Path(os.environ["MARKS"]).write_text(" ".join(map(str, times)))


if __name__ == "__main__":
    main()
