"""A DDP script with a step of 50 ms, whose ranks meet faults; a launcher that can keep its processes does so.

Arguments: ``raise`` (a failed collective), ``kill`` (SIGKILL to itself) or ``resize`` (processes go on with another
number of ranks), the number of faults, the steps between them, and seconds of imports and set-up at the start of each
process. Ranks take turns; each fault occurs once.

Marks are as in ``step.py``: ``fault N`` before a fault at step N, ``done N`` at the end of step N, without the blank.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import ftcore.worker as ft

MARKS = os.environ["MARKS"]
marks = os.open(MARKS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark(what: str) -> None:
    os.write(marks, f"{what} {dist.get_rank()} {os.getpid()} {time.monotonic_ns()}\n".encode())


def main() -> None:
    kind, count, every, setup_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    time.sleep(setup_s)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
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

    for step in job.steps(resizes=kind == "resize"):
        with step:
            fault, rest = divmod(step.number, every)
            is_due = not rest and fault <= count and fault % size == rank
            if is_due and f"fault{step.number} " not in Path(MARKS).read_text():
                mark(f"fault{step.number}")
                if kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise dist.DistBackendError("a link is down")
            optimizer.zero_grad()
            model(torch.randn(16, 256)).square().mean().backward()
            optimizer.step()
            time.sleep(0.05)
            mark(f"done{step.number}")


if __name__ == "__main__":
    main()
