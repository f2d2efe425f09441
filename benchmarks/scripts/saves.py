"""Trains a stack of linear layers with AdamW, saves in several ways, ends by SIGKILL, and restores in several ways.

Usage: saves.py GIB STEPS BATCH all|ftcore cpu|cuda. It appends JSON lines to the file in ``OUT``: what a step took with
each way of saving at every step, how long each call took, and, in the second round, how long restoring took.
"""

import json
import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import ftcore.worker as ft

GIB, STEPS, BATCH, WAYS, DEVICE = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
WIDTH = 2048
OUT, FILES = Path(os.environ["OUT"]), Path(os.environ["OUT"]).with_suffix(".files")

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = max(1, round(GIB * 2**30 / 12 / WIDTH**2))  # parameter and two moments of four bytes each
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
job = ft.join()
job.register(model=model, optimizer=optimizer)


def write(**fields: object) -> None:
    with OUT.open("a") as file:
        file.write(json.dumps(fields) + "\n")


def state() -> dict[str, object]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def wait() -> None:
    """Until the device has computed what is queued."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def train() -> None:
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(BATCH, WIDTH, device=DEVICE)).square().mean().backward()
    optimizer.step()


def measured(way: str, save: Callable[[int], object], steps: int) -> None:
    wait()
    calls, begun = [], time.perf_counter()
    for number in range(steps):
        train()
        called = time.perf_counter()
        save(number + 1)
        calls.append(time.perf_counter() - called)
    wait()
    write(way=way, step_s=(time.perf_counter() - begun) / steps, first_s=calls[0], call_s=statistics.median(calls))


def timed(way: str, load: Callable[[], object]) -> None:
    begun = time.perf_counter()
    load()
    wait()
    write(way=way, load_s=time.perf_counter() - begun)


pending: list[object] = []


def save_async(step: int) -> None:
    for before in pending:
        before.result()  # type: ignore[attr-defined]
    pending[:] = [dcp.async_save(state(), checkpoint_id=FILES / "async")]


if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    timed("ftcore, memory", job.load)
    timed("torch.load", lambda: torch.load(FILES / "torch.pt", map_location=DEVICE, mmap=False))
    target = state()
    timed("dcp.load", lambda: dcp.load(target, checkpoint_id=FILES / "dcp"))
    shutil.rmtree(FILES)
    dist.destroy_process_group()
    sys.exit()

FILES.mkdir()
assert job.load() == 0
for _ in range(2):
    train()
buffer = torch.empty(int(GIB * 2**30), dtype=torch.uint8, pin_memory=DEVICE == "cuda")
source = torch.ones_like(buffer, device=DEVICE)
for _ in range(3):
    begun = time.perf_counter()
    buffer.copy_(source)
    wait()
    copy_s = time.perf_counter() - begun
write(way="one thread's copy" if DEVICE == "cpu" else "a copy to page-locked memory", copy_s=copy_s)
del buffer, source
measured("nothing", lambda step: None, STEPS)
measured("ftcore, memory", lambda step: job.save(step, persist=False), STEPS)
measured("nothing, again", lambda step: None, STEPS)
if WAYS == "ftcore":
    sys.exit()
measured("torch.save", lambda step: torch.save(state(), FILES / "torch.pt"), 2)
measured("dcp.save", lambda step: dcp.save(state(), checkpoint_id=FILES / "dcp"), 2)
measured("dcp.async_save", save_async, 3)
pending[0].result()  # type: ignore[attr-defined]
train()
job.save(10_000, persist=False)
train()  # the copy has ended
os.kill(os.getpid(), signal.SIGKILL)
