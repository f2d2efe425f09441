"""FSDP2: each rank saves its own part of parameters and optimizer state.

    ftrun --standalone --job fsdp --nproc-per-node 2 --checkpoints checkpoints fsdp2.py

A round may have another number of ranks: each reads the parts that it needs.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ftcore.worker as ft


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    dist.init_process_group()
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)), nn.Linear(64, 64)).to(
        device
    )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)

    job = ft.join()
    job.register(model=model, optimizer=optimizer)
    for step in job.steps(until=steps):
        with step:
            generator = torch.Generator().manual_seed(step.number * dist.get_world_size() + dist.get_rank())
            x = torch.randn(32, 64, generator=generator).to(device)
            loss = (model(x) - x.roll(1, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step.report(loss=loss.item())
            if dist.get_rank() == 0 and step.number % 100 == 0:
                print(f"step {step.number}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
