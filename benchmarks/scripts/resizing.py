"""A DDP script with a step of 50 ms that goes on with any number of ranks.

Arguments: ``stays`` (a process goes on with another number of ranks) or ``restarts``, and seconds of imports and set-up
at the start of each process. Marks are as in ``step.py``: ``done`` at the end of each step.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ftcore.worker as ft

marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def main() -> None:
    resizes, setup_s = sys.argv[1] == "stays", float(sys.argv[2])
    time.sleep(setup_s)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    job = ft.join()
    job.register(net=net, optimizer=optimizer)
    model: torch.nn.Module = net

    @job.on_round
    def build() -> None:
        nonlocal model
        model = DistributedDataParallel(net)

    for step in job.steps(resizes=resizes):
        with step:
            optimizer.zero_grad()
            model(torch.randn(16, 256)).square().mean().backward()
            optimizer.step()
            time.sleep(0.05)
            os.write(marks, f"done {dist.get_rank()} {os.getpid()} {time.monotonic_ns()}\n".encode())


if __name__ == "__main__":
    main()
