"""A tiny DDP job over gloo that saves a checkpoint at every step; ``do.RANK`` and ``finish`` as for ``count.py``."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from ftcore.worker import report

HERE = Path.cwd()
CHECKPOINT = HERE / "checkpoint.pt"
STOP_AT = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 30

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", os.environ.get("INIT_METHOD", "env://"), world_size=SIZE, rank=RANK)
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    model.load_state_dict(saved["model"])
    step = saved["step"]
while step < STOP_AT:
    finish = torch.tensor(float((HERE / "finish").exists()))
    dist.all_reduce(finish, dist.ReduceOp.MAX)
    if finish:
        break
    torch.manual_seed(step)
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    do = HERE / f"do.{rank}"
    if do.exists():
        code = do.read_text()
        do.unlink()
        exec(code, {"os": os, "sys": sys})
    if rank == 0:
        torch.save({"model": model.state_dict(), "step": step}, HERE / "new.pt")
        (HERE / "new.pt").replace(CHECKPOINT)
        (HERE / "new.0").write_text(str(step))
        (HERE / "new.0").replace(HERE / "step.0")
    report(step)
    time.sleep(0.01)
dist.destroy_process_group()
print(f"rank {rank} ends at step {step} with {sum(p.sum().item() for p in model.parameters()):.17g}", flush=True)
