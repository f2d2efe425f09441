"""Events of time: the only way in which time passing makes anything happen."""

import attrs

from ftcore.events.registry import fact


@fact("deadline.expired")
@attrs.frozen(kw_only=True)
class DeadlineExpired:
    """A deadline of the folded state has passed.

    Args:
        key: which, as ``settle/3`` or ``action/r3.start``.
    """

    key: str
