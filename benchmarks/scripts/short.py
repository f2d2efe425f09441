"""A short DDP job: a data loader with a sampler, a snapshot by rank 0, two epochs, and one of three endings."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(snapshot: str) -> None:
    data = TensorDataset(torch.rand(512, 20), torch.rand(512, 1))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for source, target in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(source), target).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "epoch": epoch}, snapshot)


def main() -> None:
    dist.init_process_group("gloo")
    train(sys.argv[1])
    if os.environ["ENDING"] != "missing":
        dist.destroy_process_group()
    if os.environ["ENDING"] == "exit":
        sys.exit()


if __name__ == "__main__":
    main()
