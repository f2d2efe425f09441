"""Outlier detectors: pure, streaming and robust.

House rules: only modules of the standard library that are cheap to import in a training process; no clock (times are
arguments). State is bounded plain data and can be pickled between any two samples. A detector returns a ``Finding``;
policies decide whether it is handled.

| module | input | findings |
|---|---|---|
| ``loss`` | the loss of a job | ``loss-nan``, ``loss-spike``, ``loss-divergence`` |
| ``norm`` | the global gradient norm | ``norm``, ``norm-nan``, ``norm-spike``, ``norm-divergence`` |
| ``slow_rank`` | own work per step of all ranks | slow ranks |
| ``slowdown`` | time per step of the job | slowdowns |
| ``no_progress`` | completion times of steps | a deadline for the next one |
"""

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.loss import LossDetector
from ftcore.faults.detectors.no_progress import NoProgress
from ftcore.faults.detectors.norm import NormSpike, NormThreshold
from ftcore.faults.detectors.slow_rank import SlowRank, SlowRankDetector
from ftcore.faults.detectors.slowdown import Slowdown, SlowdownDetector

__all__ = [
    "Finding",
    "LossDetector",
    "NoProgress",
    "NormSpike",
    "NormThreshold",
    "SlowRank",
    "SlowRankDetector",
    "Slowdown",
    "SlowdownDetector",
]
