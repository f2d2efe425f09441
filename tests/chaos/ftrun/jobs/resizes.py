"""A tiny DDP job over gloo whose processes go on with another number of ranks; trains until a step.

It prints its process, its rank and its weights at its end, so that a disturbed run can be compared with an undisturbed
one, and writes the step of each rank to a file. While the file ``slow`` exists, the second half takes its time. Before
it needs its rank, it writes a file with the name ``set_up.PID``.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import ftcore.worker as ft
from ftcore.data import ElasticLoader

HERE = Path.cwd()
UNTIL = int(sys.argv[1])

(HERE / f"set_up.{os.getpid()}").touch()
dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(400, 16)
dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
job = ft.join()
batch = job.global_batch(24)
loader = ElasticLoader(dataset, batch, seed=3)
ddp: torch.nn.Module = net
job.register(net=net, optimizer=optimizer, data=loader)


@job.on_round
def build() -> None:
    global batch, ddp
    batch = job.global_batch(24)
    loader.set_batch(batch)
    ddp = torch.nn.parallel.DistributedDataParallel(net)


for step in job.steps(until=UNTIL, resizes=True):
    with step:
        optimizer.zero_grad()
        ((x, y),) = step.batch
        assert len(x) == batch.samples
        loss = torch.nn.functional.mse_loss(ddp(x), y) * batch.weight
        loss.backward()
        step.report(loss=loss.item())
        optimizer.step()
        rank = dist.get_rank()
        (HERE / f"new.{rank}").write_text(str(step.number))
        (HERE / f"new.{rank}").replace(HERE / f"step.{rank}")
        slow = step.number >= UNTIL // 2 and (HERE / "slow").exists()
        time.sleep(0.5 if slow else 0.03)

weights = [round(float(p.detach().double().sum()), 6) for p in net.parameters()]
print(f"rank {dist.get_rank()} of process {os.getpid()} ends with {weights}", flush=True)
dist.destroy_process_group()
