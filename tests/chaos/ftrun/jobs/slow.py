"""A tiny DDP job over gloo that says nothing of its steps; ``always.RANK`` and ``finish`` as for ``count.py``."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path.cwd()
ALWAYS = HERE / f"always.{os.environ['RANK']}"

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
finish = torch.zeros(())
while not finish:
    time.sleep(0.01)
    if ALWAYS.exists():
        exec(ALWAYS.read_text(), {"time": time})
    loss = model(torch.randn(4, 8)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    finish = torch.tensor(float((HERE / "finish").exists()))
    dist.all_reduce(finish, dist.ReduceOp.MAX)  # all ranks have just met in the backward pass: nobody waits here
dist.destroy_process_group()
