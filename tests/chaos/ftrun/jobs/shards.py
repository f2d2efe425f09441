"""Trains on the data shards of a queue with all ranks in step, until no rank has a batch left; writes the round, the
step and the samples of each step to ``used.RANK``, and the step to ``step.RANK``; runs ``always.RANK`` and ``do.RANK``
as ``count.py`` does. Arguments: samples, samples of a shard, samples of a batch, epochs."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ftcore.worker as ft
from ftcore.data import ShardQueue, ShardStream

HERE = Path.cwd()
SAMPLES, SIZE, BATCH, EPOCHS = map(int, sys.argv[1:5])

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
numbers = torch.arange(SAMPLES)

job = ft.join()
stream = ShardStream(ShardQueue("train", SAMPLES, SIZE, epochs=EPOCHS, seed=3), numbers, BATCH)
job.register(model=model, optimizer=optimizer, data=stream)
batches = iter(stream)

for step in job.steps(persist_every=5):
    batch = next(batches, None)
    left = torch.tensor([0.0 if batch is None else 1.0])
    dist.all_reduce(left)
    if not left:
        break
    with step:
        for name in (f"always.{rank}", f"do.{rank}"):
            file = HERE / name
            if file.exists():
                code = file.read_text()
                if name.startswith("do"):
                    file.unlink()
                exec(code, {"os": os, "time": time, "step": step.number, "report": step.report})
        optimizer.zero_grad()
        inputs = torch.zeros(1, 1) if batch is None else batch.float().reshape(-1, 1) / SAMPLES
        (model(inputs) - 1).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        with (HERE / f"used.{rank}").open("a") as used:
            print(os.environ["FTCORE_ROUND"], step.number, *([] if batch is None else batch.tolist()), file=used)
        optimizer.step()
    (HERE / f".step.{rank}").write_text(str(step.number))
    (HERE / f".step.{rank}").replace(HERE / f"step.{rank}")

job.flush()
dist.destroy_process_group()
