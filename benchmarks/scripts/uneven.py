"""A small training with one slow rank: ``uneven.py KIND STEPS RANK PHASE FACTOR FROM``.

``KIND`` is ``ddp``, ``fsdp2`` or ``pipeline`` (two stages, data-parallel). Real models over gloo; the work of a layer
and of the data set is a sleep, so that ranks on a few shared cores are equal but for the slow one: from step ``FROM``
on, rank ``RANK`` (-1: none) takes ``FACTOR`` times as long in ``PHASE`` (``data``, ``forward``, ``backward``, or
``all`` of them).
"""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

WORK_S = {"data": 0.01, "forward": 0.03, "backward": 0.06}
"""Seconds of work per step: of the data set, and of the layers of a rank."""

kind, steps, slow_rank, slow_phase, factor, since = sys.argv[1:7]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
is_slow = False


def work(phase: str, part: float) -> None:
    """Work for a part of the phase's time."""
    slower = float(factor) if is_slow and slow_phase in (phase, "all") else 1.0
    time.sleep(WORK_S[phase] * part * slower)


class Worked(torch.autograd.Function):  # type: ignore[misc]
    """Identity that takes time."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, part: float) -> torch.Tensor:
        """Take the time of a forward pass."""
        ctx.part = part
        work("forward", part)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Take the time of a backward pass."""
        work("backward", ctx.part)
        return gradient, None


class Layer(nn.Module):  # type: ignore[misc]
    """A layer that does a part of a rank's work."""

    def __init__(self, part: float, width: int = 16) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(width, width), part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        return Worked.apply(torch.tanh(self.linear(x)), self.part)


class Samples(torch.utils.data.Dataset[torch.Tensor]):  # type: ignore[misc]
    """Batches that take time to read."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        work("data", 1.0)
        return torch.randn(8, 16)


def whole_model() -> Any:
    """Return the function that computes a step of a model that every rank has."""
    model: Any = nn.Sequential(Layer(0.5), Layer(0.5), nn.Linear(16, 1))
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (size,))
        for layer in model[:2]:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline() -> Any:
    """Return the function that computes a step of a two-stage pipeline; ranks 0, 2, ... are the first stage."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "pp"))
    stage, micro = mesh.get_local_rank("pp"), 2
    layers: list[nn.Module] = [Layer(1 / micro)] if stage == 0 else [Layer(1 / micro), nn.Linear(16, 1)]
    model = nn.Sequential(*layers)
    pipe = PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = ScheduleGPipe(pipe, micro, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    peers = mesh.get_group("dp")

    def step(batch: torch.Tensor) -> None:
        if stage == 0:
            schedule.step(batch)
        else:
            schedule.step(target=torch.zeros(8, 1))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=peers)
        optimizer.step()
        optimizer.zero_grad()

    return step


train = pipeline() if kind == "pipeline" else whole_model()
for number, batch in zip(
    range(1, int(steps) + 1), torch.utils.data.DataLoader(Samples(), batch_size=None), strict=False
):
    is_slow = rank == int(slow_rank) and number >= int(since)
    train(batch)
dist.destroy_process_group()
