"""Outlier detectors: pure, streaming, robust; what to watch is told to them sample by sample.

House rules: only the standard library, and of it nothing that costs an import in a training process; no clock (times
are arguments). State is plain data, bounded, and can be pickled between any two samples. A detector names what it saw
as a ``Finding``; whether that is worth an incident is a policy's question.

| module | watches | tells |
|---|---|---|
| ``loss`` | the loss of a job | ``loss-nan``, ``loss-spike``, ``loss-divergence`` |
| ``norm`` | the global gradient norm | ``norm``, ``norm-nan``, ``norm-spike``, ``norm-divergence`` |
| ``straggler`` | durations of one step on all ranks | ``straggler`` |
| ``no_progress`` | when steps complete | a deadline for the next one |
"""

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.loss import LossDetector
from ftcore.faults.detectors.no_progress import NoProgress
from ftcore.faults.detectors.norm import NormSpike, NormThreshold
from ftcore.faults.detectors.straggler import StragglerDetector

__all__ = ["Finding", "LossDetector", "NoProgress", "NormSpike", "NormThreshold", "StragglerDetector"]
