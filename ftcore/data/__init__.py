"""Data of a training that survives faults: the order of the samples, and a loader that continues anywhere in it.

Which samples a step trains on depends on the order and the step, never on the number of ranks, so a job may go on with
another number of nodes, skip samples and return to an earlier step, and still uses each sample of an epoch once.
"""

from ftcore.data.loader import ElasticLoader
from ftcore.data.order import SampleOrder
from ftcore.data.stream import SampleStream

__all__ = ["ElasticLoader", "SampleOrder", "SampleStream"]
