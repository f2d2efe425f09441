"""Saved state and global batch.

ftcore saves and restores the state of this script, and the global batch is the same in every world. `register` names
the state; `steps` yields each step; `global_batch` divides the batch over the ranks of the round. The random numbers
of an evaluation change none of the training's.
"""

import torch

from ftcore import worker

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
table = torch.zeros(4, 2)  # this rank's rows of a table of 16 rows

job: worker.TrainingJob = worker.join()
share: worker.RankBatch = job.global_batch(32, micro=8)
rows = worker.Slice(table, size=(16, 2), offset=(0, 0))
job.register(model=model, optimizer=optimizer, table={"rows": rows})


def train(step: worker.TrainingStep) -> float:
    """One step on this rank's samples of the global batch."""
    total = 0.0
    optimizer.zero_grad()
    for samples in share.micro_batches:
        x = torch.stack([torch.full((8,), number / 32) for number in samples])
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean() * share.weight
        loss.backward()
        total += loss.item()
    optimizer.step()
    step.report(loss=total)
    return total


def evaluate() -> float:
    """The loss on random inputs; dropout and the like then draw the same numbers as without it."""
    states = worker.get_rng_states()
    with torch.no_grad():
        x = torch.rand(64, 8)
        loss = (model(x).squeeze(1) - x.sum(1)).square().mean().item()
    worker.set_rng_states(states)
    return loss


for each in job.steps(until=20):
    with each:
        last = train(each)
    if each.number == 10:
        print(f"loss {evaluate():.4f} on other inputs")
print(f"loss {last:.4f} with {share.samples} of {share.size} samples on this rank")
