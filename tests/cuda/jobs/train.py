"""Trains a small network on CUDA device 0 with mixed precision; each rank does the same on its own, as replicas do.

Usage: train.py UNTIL SAVE_EVERY BACKEND DTYPE. It appends a line per step, with the loss to the last bit, to
``losses.RANK``, and prints a digest of the weights. In ``do.RANK`` is code that is run once, in the step whose number
follows the last ``#``, between backward and the optimizer's step.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ftcore.worker as ft

UNTIL, SAVE_EVERY, BACKEND, DTYPE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], getattr(torch, sys.argv[4])

torch.cuda.set_device(0)
dist.init_process_group(BACKEND)
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Dropout(0.2), torch.nn.Linear(256, 8)
).cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
scaler = torch.amp.GradScaler("cuda", enabled=sys.argv[4] == "float16")  # it waits for the device at each step
job = ft.join()
job.register(model=net, optimizer=optimizer, scheduler=scheduler, scaler=scaler)


def told(number: int) -> None:
    file = Path(f"do.{rank}")
    if file.exists():
        code = file.read_text()
        if int(code.split("#")[1]) == number:
            file.unlink()
            exec(code, {"Path": Path, "os": os, "signal": signal, "time": time, "torch": torch})


for step in job.steps(until=UNTIL, save_every=SAVE_EVERY, persist_every=0):
    with step:
        with torch.autocast("cuda", dtype=DTYPE):
            loss = net(torch.randn(32, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        told(step.number)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        with Path(f"losses.{rank}").open("a") as losses:
            losses.write(f"{step.number} {loss.item().hex()}\n")

torch.cuda.synchronize()
digest = hashlib.sha256(b"".join(each.detach().cpu().numpy().tobytes() for each in net.state_dict().values()))
print(f"rank {rank} ends with {digest.hexdigest()[:16]}", flush=True)
dist.destroy_process_group()
