"""A tiny FSDP2 job over gloo that makes its model and its optimizer anew in each round; trains until a step.

The file ``at.RANK`` has JSON: lists of code by ``PLACE STEP``, run once each: ``forward``, ``backward`` (after it) or
``optimizer`` (before its step).

Arguments: the last step; ``tensor``: two parallel dimensions, the second of tensor parallelism; ``resizes``: it goes on
with another number of ranks, and every rank has the same data. While the file ``slow`` is there, a step takes 0.2 s.

It prints its process and a digest of the whole weights at its end.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ftcore.worker as ft

HERE = Path.cwd()
UNTIL, MODE = int(sys.argv[1]), sys.argv[2:]

dist.init_process_group("gloo")
torch.set_num_threads(1)
job = ft.join()
net: torch.nn.Module | None = None
optimizer: torch.optim.Optimizer | None = None
data_rank = 0


def damage() -> None:
    """Overwrite this rank's part of a parameter and of a moment of the optimizer."""
    with torch.no_grad():
        first = next(net.parameters())
        first.to_local().mul_(7)
        if optimizer.state[first]:
            optimizer.state[first]["exp_avg"].to_local().add_(3)


def at(place: str, number: int) -> None:
    """Run what the test has left for this place."""
    file = HERE / f"at.{dist.get_rank()}"
    if not file.exists():
        return
    found = json.loads(file.read_text())
    codes = found.get(f"{place} {number}")
    if codes:
        code = codes.pop(0)
        (HERE / f"new.{file.name}").write_text(json.dumps(found))
        (HERE / f"new.{file.name}").replace(file)
        exec(code, {"os": os, "signal": signal, "time": time, "dist": dist, "ft": ft, "damage": damage})


class Numbers:
    """Batches that follow from their number and from the rank among those with other data."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        while True:
            self.given += 1
            source = torch.Generator().manual_seed(1000 * data_rank + self.given)
            yield torch.randn(8, 16, generator=source)

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@job.on_round
def build() -> None:
    """The model of a round; its weights are replaced by the saved ones."""
    global net, optimizer, data_rank
    net = optimizer = None
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    if "tensor" in MODE:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(made, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(made, mesh=mesh["data"])
        data_rank = mesh.get_local_rank("data")
    else:
        fully_shard(made[0])
        fully_shard(made)
        data_rank = 0 if "resizes" in MODE else dist.get_rank()
    net, optimizer = made, torch.optim.AdamW(made.parameters(), lr=0.01)
    job.register(net=net, optimizer=optimizer)


job.register(data=Numbers())

for step in job.steps(until=UNTIL, resizes="resizes" in MODE):
    with step:
        batch = step.batch
        optimizer.zero_grad()
        at("forward", step.number)
        loss = net(batch).square().mean()
        loss.backward()
        at("backward", step.number)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        at("optimizer", step.number)
        optimizer.step()
        (HERE / f"new.{dist.get_rank()}").write_text(str(step.number))
        (HERE / f"new.{dist.get_rank()}").replace(HERE / f"step.{dist.get_rank()}")
        time.sleep(0.2 if (HERE / "slow").exists() else 0.03)

weights = [each.full_tensor().detach() for each in net.parameters()]
digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in weights)).hexdigest()[:16]
print(f"rank {dist.get_rank()} of process {os.getpid()} ends with {digest}", flush=True)
dist.destroy_process_group()
