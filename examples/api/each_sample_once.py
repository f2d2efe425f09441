"""Each sample once.

The loader continues at any step, with any number of ranks. `SampleOrder` tells which samples a step has; a
`SampleStream` is a position in it.
"""

import torch

from ftcore import worker
from ftcore.data import ElasticLoader, SampleOrder, SampleStream

numbers = torch.arange(100)
dataset = torch.utils.data.TensorDataset(numbers)
job = worker.join()
loader = ElasticLoader(dataset, job.global_batch(20), seed=7)
job.register(data=loader)

used = []
for step in job.steps(until=loader.steps(epochs=1)):
    with step:
        used += [int(number) for (batch,) in step.batch for number in batch]

order = SampleOrder(len(dataset), seed=7)
assert used == order.at(torch.arange(100)).tolist()
assert sorted(used) == numbers.tolist()

stream = SampleStream(order)
stream.load_state_dict({**loader.state_dict(), "position": 40})  # after step 2
stream.skip(50, 60)
assert stream.ranges(20) == [(40, 50), (60, 70)]
print(f"step 3 without ten samples: {stream.samples(stream.ranges(20)).tolist()}")
