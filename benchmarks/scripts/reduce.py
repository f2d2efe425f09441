"""A data-parallel script in plain torch: it averages gradients by all-reduce, a step takes 50 ms, a rank kills itself.

It does not use its launcher: the all-reduce of the other ranks fails on the broken connection, and they raise.
Arguments: how often a rank kills itself, and at which step of a round. Marks are as in ``step.py``; ``died`` is the
last mark of a rank that kills itself.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

marks = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def mark(what: str) -> None:
    os.write(marks, f"{what} {os.environ['RANK']} {os.getpid()} {time.monotonic_ns()}\n".encode())


def average(model: torch.nn.Module) -> None:
    """All-reduce of each gradient."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    kills, last = int(sys.argv[1]), int(sys.argv[2])
    mark("begun")
    dist.init_process_group("gloo")
    mark("group")
    tries = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    victim = tries < kills and tries % dist.get_world_size() == dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    step = 0
    while True:
        if victim and step == last:
            mark("died")
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.randn(16, 64)).square().mean().backward()
        average(model)
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            mark("stepped")
        step += 1
        print(f"rank {dist.get_rank()} step {step}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
