"""The result of a detector for one sample."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """An abnormal sample.

    Args:
        kind: the kind, as in ``fault.observed``.
        step: the step of the sample.
        value: the sample.
        usual: the expected value: the median of the compared samples, or a fixed threshold.
        score: the deviation in robust standard deviations; infinite if not defined.
        limit: least score that is reported.
        since: first step of the episode that the sample belongs to; equal to ``step``: a new episode.
        rank: the affected rank; -1: the whole job.
        tolerated: it was reported before and the remedy did not help: it is recorded, and no action follows.
    """

    kind: str
    step: int
    value: float
    usual: float
    score: float
    limit: float
    since: int
    rank: int = -1
    tolerated: bool = False
