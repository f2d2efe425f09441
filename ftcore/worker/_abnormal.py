"""Which steps a rank stops before the optimizer changes the state, because their values are abnormal."""

import math

from ftcore.worker import _environment


class AbnormalStep(Exception):
    """A step is to be computed again, on the same or on the next batch.

    Args:
        what: the abnormal value.
        norm: the global norm of its gradients; not a number if that is not known, but cannot be one.
        limit: the threshold.
    """

    def __init__(self, what: str, norm: float, limit: float) -> None:
        super().__init__(what)
        self.norm, self.limit = norm, limit


class StepLimits:
    """What this round's ranks compare the values of their steps with.

    Attributes:
        limit: the least abnormal norm; None: no policy takes abnormal steps.
        tolerated: steps that are accepted with abnormal values.
    """

    def __init__(self) -> None:
        self.limit: float | None = None
        self.tolerated: frozenset[int] = frozenset()

    def new_round(self) -> None:
        """Read them from the environment."""
        self.limit, self.tolerated = _environment.norm_threshold(), _environment.tolerated()

    def check(self, loss: float | None, norm: float | None, scaled: bool) -> AbnormalStep | None:
        """Compare a step's values; None: they are usual, or no policy takes abnormal ones.

        Args:
            loss: its loss, if that is known before the optimizer's step. If it is not finite, no gradient is.
            norm: the global norm of its gradients.
            scaled: a scaler is registered. It leaves out steps whose gradients are not finite; that is usual.
        """
        limit = self.limit
        if limit is None:
            return None
        if norm is not None and not norm < limit:
            what = f"norm: {norm:.4g}, where the threshold is {limit:.4g},"
            return None if scaled and not math.isfinite(norm) else AbnormalStep(what, norm, limit)
        if loss is not None and not math.isfinite(loss) and not scaled:
            return AbnormalStep(f"loss: {loss:.4g}", math.nan, limit)
        return None
