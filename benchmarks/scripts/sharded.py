"""Saves sharded state with one number of ranks, or restores it with another, in two ways: ftcore and DCP.

Usage: sharded.py GIB FILES save|load. Rank 0 appends a JSON line for each way of restoring to the file in ``OUT``: the
longest time that a rank took, and by how much the memory of a rank grew meanwhile, as a share of its own state.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ftcore.worker as ft

GIB, FILES, MODE = float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
WIDTH = 1024

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
layers = max(1, round(GIB * 2**30 / 12 / WIDTH**2))  # parameter and two moments of four bytes each
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
job = ft.join()
job.register(model=model, optimizer=optimizer)


def train() -> None:
    optimizer.zero_grad()
    model(torch.randn(1, WIDTH)).square().mean().backward()
    optimizer.step()


def memory(line: str) -> int:
    """A line of /proc/self/status, in bytes."""
    text = Path("/proc/self/status").read_text()
    return next(int(each.split()[1]) << 10 for each in text.splitlines() if each.startswith(line))


def timed(way: str, load: Callable[[], object]) -> None:
    """Restore, and report the slowest rank and the largest growth."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    before = memory("VmRSS")
    dist.barrier()
    begun = time.perf_counter()
    load()
    took = torch.tensor([time.perf_counter() - begun, (memory("VmHWM") - before) / (GIB * 2**30 / size)])
    dist.all_reduce(took, dist.ReduceOp.MAX)
    if rank == 0:
        with Path(os.environ["OUT"]).open("a") as file:
            file.write(json.dumps({"way": way, "load_s": took[0].item(), "grown": took[1].item()}) + "\n")


def load_dcp() -> None:
    weights, state = get_state_dict(model, optimizer)
    found = {"model": weights, "optimizer": state}
    dcp.load(found, checkpoint_id=FILES)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


if MODE == "save":
    assert job.load() == 0
    train()
    job.save(1, persist=True)
    train()  # the copy has ended; it is written in the background, at the latest when the job ends
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=FILES)
else:
    train()  # the state that is restored into exists: neither way has to make it
    timed("ftcore, storage", job.load)
    assert job.loaded is not None and job.loaded.source == "storage", job.loaded
    timed("dcp.load", load_dcp)
dist.destroy_process_group()
