"""A two-stage pipeline with two replicas over gloo: ranks 0 and 2 are the first stage, 1 and 3 the second.

A stage's work is a sleep in its layer's backward pass, twice as long in the second stage. ``always.RANK`` and
``finish`` as for ``count.py``; the former runs in the backward pass.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

HERE = Path.cwd()
ALWAYS = HERE / f"always.{os.environ['RANK']}"

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "stage"))
stage = mesh.get_local_rank("stage")


class Work(torch.autograd.Function):
    """The identity; its backward pass takes time."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        """Change nothing."""
        return x * 1.0

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Take time."""
        time.sleep(0.01 * (1 + stage))
        if ALWAYS.exists():
            exec(ALWAYS.read_text(), {"time": time})
        return gradient


class Stage(torch.nn.Module):
    """A stage; the second one has a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(1 + stage)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the stage."""
        return Work.apply(self.layers(x))


model = Stage()
pipe = PipelineStage(model, stage, 2, torch.device("cpu"), group=mesh.get_group("stage"))
schedule = ScheduleGPipe(pipe, 2, loss_fn=lambda output, target: (output - target).square().mean())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
finish = torch.zeros(())
while not finish:
    if stage == 0:
        schedule.step(torch.randn(4, 8))
    else:
        schedule.step(target=torch.zeros(4, 8))
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))
    optimizer.step()
    optimizer.zero_grad()
    finish = torch.tensor(float((HERE / "finish").exists()))
    dist.all_reduce(finish, dist.ReduceOp.MAX)
dist.destroy_process_group()
