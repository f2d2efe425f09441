"""Data shards of a queue.

Under `ftrun` the master gives the shards to the ranks; without it, as here, each rank reads its part. A shard is a
range of samples, or what a function reads: a `DataShard` says which.
"""

from collections.abc import Iterator

import torch

from ftcore import worker
from ftcore.data import DataShard, ShardQueue, ShardStream

numbers = torch.arange(100)
queue = ShardQueue("train", samples=100, shard_size=16, seed=7)
stream = ShardStream(queue, numbers, batch_size=10)
job = worker.join()
job.register(data=stream)

used = []
for step in job.steps(until=10):
    with step:
        used += step.batch.tolist()
assert sorted(used) == numbers.tolist()
assert used[:16] == queue.samples_at(0)


def lines(shard: DataShard) -> Iterator[str]:
    """What a file has."""
    for line in range(3):
        yield f"file {shard.number}, line {line}"


files = ShardStream(ShardQueue("files", shards=2, shuffle=False), lines)
print(list(job.connect(files)))
