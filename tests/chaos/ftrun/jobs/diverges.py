"""A job whose learning rate becomes too high at step 140: without another rate the loss grows until it is infinite.

Arguments: the last step. It prints its process, the rate that it has set and the loss at its end.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

import ftcore.worker as ft

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Linear(8, 1, bias=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
job = ft.join()
ddp: torch.nn.Module = net


class Numbers:
    """Batches that follow from their number."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        while True:
            self.given += 1
            source = torch.Generator().manual_seed(1000 * dist.get_rank() + self.given)
            x = torch.randn(256, 8, generator=source)
            yield x, x.sum(dim=1, keepdim=True) + torch.randn(256, 1, generator=source)

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


job.register(net=net, optimizer=optimizer, data=Numbers())


@job.on_round
def build() -> None:
    global ddp
    ddp = torch.nn.parallel.DistributedDataParallel(net)


loss = torch.zeros(())
for step in job.steps(until=int(sys.argv[1]), persist_every=10):
    with step:
        x, y = step.batch
        optimizer.param_groups[0]["lr"] = 0.05 if step.number < 140 else 1.4
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(x), y)
        loss.backward()
        step.report(loss=loss.item())
        optimizer.step()
        time.sleep(0.005)

rate = optimizer.param_groups[0]["lr"]
print(f"process {os.getpid()} ends with rate {rate} and loss {loss.item():.3g}", flush=True)
dist.destroy_process_group()
