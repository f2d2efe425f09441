"""What a detector says about one sample."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A sample that is not as it should be.

    Args:
        kind: what it is, as in ``fault.observed``.
        step: the step of the sample.
        value: the sample.
        usual: what was expected: the median that it was compared with, or the threshold of a plain threshold.
        score: how far off, in robust standard deviations; infinite where there is no such number.
        limit: the score from which on samples are told.
        since: the first step of the episode that the sample belongs to; equal to ``step``: it is new.
        rank: the rank that it is about; -1: the whole job.
        tolerated: it was told before, and its remedy did not help: it is recorded and asks for nothing.
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

    @property
    def new(self) -> bool:
        """The episode begins with this sample."""
        return self.since == self.step
