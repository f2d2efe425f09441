"""Trains with DDP on a global batch of 20 of 90 samples, in float64; writes the loss of each step over all ranks to
``losses``, the round and the samples of each step to ``samples.RANK``, and with ``always.RANK`` as for ``count.py``.
Run without ftrun, it gives the curve to compare with."""

import contextlib
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ftcore.worker as ft
from ftcore.data import ElasticLoader

HERE, UNTIL, MICRO = Path.cwd(), int(sys.argv[1]), int(sys.argv[2])

if "RANK" in os.environ:
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
data = torch.randn(90, 8, dtype=torch.float64)
target = data.cos().sum(1, keepdim=True)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

job = ft.join()
batch = job.global_batch(20, MICRO)
samples = torch.utils.data.TensorDataset(data, target, torch.arange(len(data)))
job.register(model=model, optimizer=optimizer, data=ElasticLoader(samples, batch, seed=3))

for step in job.steps(until=UNTIL):
    with step:
        file = HERE / f"always.{rank}"
        if file.exists():
            exec(file.read_text(), {"time": time, "step": step.number})
        optimizer.zero_grad()
        own, used = torch.zeros((), dtype=torch.float64), []
        for inputs, wanted, numbers in step.batch:
            used += numbers.tolist()
            with contextlib.nullcontext() if len(used) == batch.samples else model.no_sync():
                loss = (model(inputs) - wanted).square().mean() * batch.weight
                loss.backward()
            own += loss.detach()
        optimizer.step()
        dist.all_reduce(own)
        mean = own.item() / dist.get_world_size()
        step.report(loss=mean)
        with (HERE / f"samples.{rank}").open("a") as file:
            print(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), step.number, *used, file=file)
        if rank == 0:
            with (HERE / "losses").open("a") as losses:
                print(step.number, repr(mean), len(batch.micro_batches), dist.get_world_size(), file=losses)

dist.destroy_process_group()
