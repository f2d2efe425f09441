"""What the training processes of these tests do; each function is a case, run on every rank."""

import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from ftcore.worker import join


class Net(nn.Module):
    """Dimensions that no number of ranks divides, tied weights, dropout, a buffer that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(11, 6)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout(0.25)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.token.weight
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += torch.arange(3.0)
        x = self.token(tokens)
        x = self.norm(x + self.down(self.drop(F.gelu(self.up(x)))))
        return self.head(x)


def connect(out: Path) -> None:
    size = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=int(os.environ["RANK"]), world_size=size)


def build(layout: str, seed: int = 7) -> nn.Module:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    net: nn.Module = Net()
    if layout == "ddp":
        return DistributedDataParallel(net)
    if layout in ("fsdp2", "hsdp", "tp", "2d"):
        size = dist.get_world_size()
        shapes = {"fsdp2": (size,), "hsdp": (2, size // 2), "tp": (size,), "2d": (2, size // 2)}
        names = {"fsdp2": ("s",), "hsdp": ("r", "s"), "tp": ("t",), "2d": ("s", "t")}
        mesh = init_device_mesh("cpu", shapes[layout], mesh_dim_names=names[layout])
        if layout in ("tp", "2d"):
            plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            parallelize_module(net, mesh["t"], plan)
        if layout != "tp":
            along = mesh["s"] if layout == "2d" else mesh
            fully_shard(net.up, mesh=along)
            fully_shard(net.down, mesh=along)
            fully_shard(net, mesh=along)
    elif layout == "fsdp1":
        return FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))
    return net


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True)
    return torch.optim.AdamW([{"params": list(model.parameters()), "weight_decay": 0.1}], lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any = None) -> float:
    """A step whose data comes from the generators, so that it shows their state."""
    shift = random.randrange(11) + int(np.random.randint(11))
    tokens = (torch.randint(11, (4, 5)) + shift) % 11
    loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def dump(job: Any, path: Path, extra: dict[str, Any] | None = None) -> None:
    """Write what this rank holds: each slice with its place, and Python values."""
    from ftcore.worker.state import rng

    moment = job._collection.moment(0)
    entries = moment.collected.entries
    pieces = [((e.piece.name, e.piece.size, e.piece.offset), e.data.detach().clone()) for e in entries]
    torch.save({"pieces": pieces, "records": moment.records, "rng": rng.packed(moment.rng), **(extra or {})}, path)


def session(
    out: Path,
    layout: str = "ddp",
    optimizer: str = "adamw",
    until: int = 3,
    save_every: int = 1,
    persist_every: int = 0,
    seed: int = 7,
    durable: bool = False,
) -> None:
    """Train from the saved state to a step; write the state at the start and at the end, and all losses."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if layout != "plain":
        connect(out)
    model = build(layout, seed)
    opt = optimizer_of(optimizer, model)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=100)
    progress: dict[str, Any] = {"epoch": seed, "seen": [seed]}
    same_data = {"tp": size, "2d": size // 2}.get(layout, 1)
    torch.manual_seed(seed + rank // same_data)
    job = join()
    job.register(model=model, optimizer=opt, scheduler=scheduler, progress=progress)
    losses = []
    steps = job.steps(until=until, save_every=save_every, persist_every=persist_every)
    dump(job, out / f"{rank}.start", {"loaded": tuple(job.loaded) if job.loaded else None})
    for step in steps:
        with step:
            losses.append((step.number, train(model, opt)))
            scheduler.step()
            progress["epoch"] += 1
            progress["seen"].append(step.number)
        if durable:
            await_stored(step.number)
    dump(job, out / f"{rank}.end", {"losses": losses})
    if layout != "plain":
        dist.destroy_process_group()


def await_stored(step: int) -> None:
    """Wait until the checkpoint of a step of the first run is complete."""
    manifest = Path(os.environ["FTCORE_CHECKPOINTS"]) / f"step-{step:09d}-r1" / "manifest.json"
    while not manifest.exists():
        time.sleep(0.005)


def foreign(out: Path, kind: str, job: str = "demo") -> None:
    """Train without ftcore, and save as torch does, at step 9."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    from ftcore.worker.state.collect import StateCollection
    from ftcore.worker.state.writer import FtcoreStorageWriter

    rank = int(os.environ["RANK"])
    connect(out)
    model = build("fsdp2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.25)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
    for _ in range(2):
        train(model, optimizer)
        scheduler.step()
    options = StateDictOptions(full_state_dict=kind == "file", cpu_offload=kind == "file")
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    state = {"model": model_state, "optimizer": optimizer_state, "scheduler": scheduler.state_dict(), "step": 9}
    state["progress"] = {"epoch": 4, "seen": [1, "ü"]}
    if kind == "dcp":
        where = os.environ["FTCORE_CHECKPOINTS"]
        dcp.save(state, storage_writer=FtcoreStorageWriter(where, step=9, job=job))
    elif kind == "directory":
        dcp.save(state, checkpoint_id=out / kind)
    elif rank == 0:
        torch.save(state, out / kind)
    collection = StateCollection()
    collection.register({"model": model, "optimizer": optimizer})
    pieces = [((e.piece.name, e.piece.size, e.piece.offset), e.data.clone()) for e in collection.collect().entries]
    torch.save({"pieces": pieces}, out / f"{rank}.end")
    dist.destroy_process_group()


def gathers(out: Path) -> None:
    """Gather values of several lengths; write what arrived, and how many collectives that took."""
    from ftcore.worker.state import spread

    rank, plain, calls = int(os.environ["RANK"]), dist.all_gather, [0]
    connect(out)

    def counted(*args: Any) -> Any:
        calls[0] += 1
        return plain(*args)

    dist.all_gather = counted
    found = []
    for length in (0, spread.SHORT_BYTES // 2, 3 * spread.SHORT_BYTES, 1000 * spread.SHORT_BYTES * rank):
        calls[0] = 0
        values = spread.gather("x" * length + str(rank))
        found.append(([len(value) for value in values], [int(value[-1]) for value in values], calls[0]))
    torch.save(found, out / f"{rank}.end")
    dist.destroy_process_group()
