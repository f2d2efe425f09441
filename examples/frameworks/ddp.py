"""DDP on CPUs or GPUs: a model, an optimizer, a scheduler and data that ftcore saves and restores.

    ftrun --standalone --job ddp --nproc-per-node 2 --checkpoints checkpoints ddp.py

Kill a worker while it trains: the next round continues after the last completed step, with the same losses. Under
torchrun the same script trains from the beginning.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import ftcore.worker as ft


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of a curve."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([number / 256 - 1])
        return x, torch.sin(3 * x)


class Batches:
    """The batches of a loader, epoch after epoch, with a place that can be saved."""

    def __init__(self, loader: DataLoader[Any], sampler: DistributedSampler[Any]) -> None:
        self.loader, self.sampler = loader, sampler
        self.epoch = self.done = 0

    def __iter__(self) -> Iterator[Any]:
        self.sampler.set_epoch(self.epoch)
        skipped = self.done
        for number, batch in enumerate(self.loader):
            if number >= skipped:
                self.done += 1
                yield batch
        self.epoch, self.done = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    dist.init_process_group()
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1)).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sampler = DistributedSampler(Points(), seed=0)
    own = torch.Generator()  # else each new iteration draws from the generator that dropout uses
    data = Batches(DataLoader(Points(), batch_size=32, sampler=sampler, generator=own), sampler)

    job = ft.join()
    job.register(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    for step in job.steps(until=steps):
        with step:
            x, y = (each.to(device) for each in step.batch)
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step.report(loss=loss.item())
            if dist.get_rank() == 0 and step.number % 100 == 0:
                print(f"step {step.number}: loss {loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
