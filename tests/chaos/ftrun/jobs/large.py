"""A DDP job whose gradients are many MB, in buckets of 8 MB: a rank is in a collective for most of its time.

Arguments: the last step, and MB of parameters. It prints its process and its weights at its end, as ``in_place.py``.
DDP keeps its buckets: otherwise it orders them anew after the first step of a round, and more than two ranks add up
in another order then.
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import ftcore.worker as ft

UNTIL, PART = int(sys.argv[1]), int(sys.argv[2]) * 2**20 // 4 // 8

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.set_num_threads(1)
torch.manual_seed(0)


class Parts(torch.nn.Module):
    """Large parameters, and little to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(PART)) for _ in range(8))

    def forward(self, factors: torch.Tensor) -> torch.Tensor:
        losses = [(part * factor).square().mean() for part, factor in zip(self.parts, factors, strict=True)]
        return torch.stack(losses).sum()


net = Parts()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
job = ft.join()
job.register(net=net, optimizer=optimizer)
ddp: torch.nn.Module = net


@job.on_round
def build() -> None:
    global ddp
    ddp = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=8, find_unused_parameters=True)


for step in job.steps(until=UNTIL):
    with step:
        factors = torch.randn(8, generator=torch.Generator().manual_seed(1000 * rank + step.number))
        optimizer.zero_grad()
        ddp(factors).backward()
        optimizer.step()
    Path(f"new.{rank}").write_text(str(step.number))
    Path(f"new.{rank}").replace(f"step.{rank}")

digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()[:16]
print(f"rank {rank} of process {os.getpid()} ends with {digest}", flush=True)
dist.destroy_process_group()
