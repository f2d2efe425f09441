"""Training steps that are short for their model: what is added to each step is seen.

Arguments: ``plain``, or ``steps`` or ``between`` with registered state, which is saved on request only; the number of
blocks, and the steps of a block. The nanoseconds of a step in each block are written to the file that MARKS names; for
``between``, those from the end of a step's computation to the beginning of the next one, with a deeper model.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import torch

import ftcore.worker as ft

LAYERS = 100


def main() -> None:
    kind, blocks, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    if kind == "between":
        layers = ((torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32)) for _ in range(LAYERS))
        net = torch.nn.Sequential(*(each for layer in layers for each in layer), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, foreach=True)
    x, y = torch.randn(16, 32), torch.randn(16, 1)

    def compute() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()

    times: list[float] = []
    if kind != "plain":
        job = ft.join()
        job.register(net=net, optimizer=optimizer)
    if kind == "between":
        gaps: list[int] = []
        ended = 0
        for step in job.steps(until=blocks * size + 1, save_every=0):
            with step:
                if ended:
                    gaps.append(time.perf_counter_ns() - ended)
                compute()
                ended = time.perf_counter_ns()
        times = [statistics.median(gaps[at : at + size]) for at in range(0, len(gaps), size)]
    elif kind == "steps":
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
