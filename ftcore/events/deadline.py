"""Events of time: the only way in which time passing makes anything happen."""

import attrs

from ftcore.events.registry import fact


@fact("deadline.expired")
@attrs.frozen(kw_only=True)
class DeadlineExpired:
    """A deadline of the folded state has passed.

    Args:
        key: which, as ``settle/3`` or ``action/r3.start``.
        due: when it was over, in nanoseconds since the epoch: one of that key that was set anew meanwhile still stands;
            0: whatever it was.
    """

    key: str
    due: int = 0
