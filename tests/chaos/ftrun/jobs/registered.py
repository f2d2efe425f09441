"""A tiny job over gloo that registers its state: DDP, or FSDP2 with the argument ``fsdp``; trains until a step.

With the argument ``data``, it also registers data whose batches are numbers: each rank writes those it trains on into
``batches.RANK``, with its step, and reports a loss that is not a number for the batch ``BAD``. With ``samples`` the
batches are those of an ``ElasticLoader``.

With the argument ``slices:N``, ranks r and r + N also hold the same slice of a tensor, as a hand-made optimizer shard.

``do.RANK``, ``always.RANK`` and ``finish`` as for ``count.py``. It prints the weights at its end, so that a disturbed
run can be compared with an undisturbed one.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ftcore.worker as ft
from ftcore.data import ElasticLoader

HERE = Path.cwd()
UNTIL = int(sys.argv[1])
LAYOUT, _, SHARDS = sys.argv[2].partition(":")
PERSIST_EVERY = sys.argv[3] if len(sys.argv) > 3 else "0"

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)
)
if LAYOUT == "fsdp":
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model = net
else:
    model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)

job = ft.join()


class Numbers:
    """Data whose batches are their numbers, from 1."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        while True:
            self.given += 1
            yield self.given

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


BAD = 20
shards = int(SHARDS or 1)
part, shard = torch.zeros(8), rank % shards
more = {"moments": {"m": ft.Slice(part, size=(8 * shards,), offset=(8 * shard,))}} if LAYOUT == "slices" else {}
if LAYOUT == "data":
    more = {"data": Numbers()}
if LAYOUT == "samples":
    more = {"data": ElasticLoader(range(150), job.global_batch(dist.get_world_size(), 1), shuffle=False)}
job.register(model=model, optimizer=optimizer, scheduler=scheduler, **more)


def told(name: str, number: int) -> None:
    file = HERE / f"{name}.{rank}"
    if file.exists():
        code = file.read_text()
        if name == "do":
            file.unlink()
        exec(code, {"os": os, "sys": sys, "time": time, "step": number})


persist_every = "auto" if PERSIST_EVERY == "auto" else int(PERSIST_EVERY)
for step in job.steps(until=UNTIL, persist_every=persist_every, tokens=4):
    with step:
        told("do", step.number)
        told("always", step.number)
        batch = 0
        if LAYOUT == "data":
            batch = step.batch
        elif LAYOUT == "samples":
            batch = int(step.batch[0]) // dist.get_world_size() + 1
        if batch:
            with (HERE / f"batches.{rank}").open("a") as file:
                file.write(f"{step.number} {batch}\n")
        loss = model(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        part += step.number * (1 + shard)
        step.report(loss=float("nan") if batch == BAD else loss.item())
        (HERE / f"new.{rank}").write_text(str(step.number))
        (HERE / f"new.{rank}").replace(HERE / f"step.{rank}")
        time.sleep(0.01)

full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in net.parameters()]
digest = hashlib.sha256(b"".join(p.detach().contiguous().numpy().tobytes() for p in full)).hexdigest()[:16]
assert LAYOUT != "slices" or part.tolist() == [(1 + shard) * UNTIL * (UNTIL + 1) / 2] * 8, part
print(f"rank {rank} ends with {digest}", flush=True)
dist.destroy_process_group()
