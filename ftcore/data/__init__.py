"""Data of a training that survives faults: the order of the samples, and a loader that continues anywhere in it.

Which samples a step trains on depends on the order and the step, never on the number of ranks, so a job may go on with
another number of nodes, skip samples and return to an earlier step, and still uses each sample of an epoch once.

Where ranks take their data at their own pace, or it comes in files, ``ShardStream`` reads the shards of a queue that
the master gives out.
"""

from ftcore.data.loader import ElasticLoader
from ftcore.data.order import SampleOrder
from ftcore.data.shards import DataShard, ShardQueue, ShardStream
from ftcore.data.stream import SampleStream

__all__ = ["DataShard", "ElasticLoader", "SampleOrder", "SampleStream", "ShardQueue", "ShardStream"]
