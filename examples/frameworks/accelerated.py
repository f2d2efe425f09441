"""Accelerate: ``Accelerator`` uses the environment that ``ftrun`` gives to its workers, as it uses torchrun's.

    ftrun --standalone --job accelerated --nproc-per-node 2 --checkpoints checkpoints accelerated.py

``accelerate launch`` is replaced by ``ftrun``; what it would set by flags, ``Accelerator(...)`` or a variable such as
``ACCELERATE_MIXED_PRECISION`` sets.
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ftcore.worker as ft


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args().steps
    seedable = DataLoaderConfiguration(use_seedable_sampler=True)  # the order depends on the epoch alone
    accelerator = Accelerator(gradient_accumulation_steps=2, dataloader_config=seedable)
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 512).unsqueeze(1)
    net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, torch.sin(3 * x)), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    per_epoch = len(loader) // 2  # steps: two batches each

    job = ft.join()
    job.register(model=model, optimizer=optimizer.optimizer)
    batches = iter(())
    for step in job.steps(until=steps):
        with step:
            epoch, done = divmod(step.number - 1, per_epoch)
            if done == 0 or step.number == 1 + (job.loaded.step if job.loaded else 0):
                rest = accelerator.skip_first_batches(loader, 2 * done)
                rest.set_epoch(epoch)
                batches = iter(rest)
            for _ in range(2):
                inputs, targets = next(batches)
                with accelerator.accumulate(model):
                    loss = (model(inputs) - targets).square().mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
            step.report(loss=loss.item())
            if accelerator.is_main_process and step.number % 100 == 0:
                print(f"step {step.number}: loss {loss.item():.6f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
