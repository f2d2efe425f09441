"""Damaged memory.

A device that lost the content of its memory, but still works, need not cost a process: the script says so inside of a
step. `ftrun` then gives this rank its state from another copy, and `steps` yields the step again. Outside `ftrun` the
error ends the script.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ftcore import worker

LOST_CONTENT = ("UCE ERROR", "HBM MULTI BIT ECC ERROR")  # as torch_npu words them


@contextmanager
def device_errors() -> Iterator[None]:
    """Tell ftcore which of the device's errors are damaged memory; others stay what they are."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error) for words in LOST_CONTENT):
            raise worker.MemoryDamaged(str(error)) from error
        raise


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job = worker.join()
job.register(model=model, optimizer=optimizer)

for each in job.steps(until=20):
    with each, device_errors():
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        each.report(loss=loss.item())

try:
    with device_errors():
        raise RuntimeError("UCE ERROR in a kernel")
except worker.MemoryDamaged as error:
    print(f"after step {each.number}: {error}")
