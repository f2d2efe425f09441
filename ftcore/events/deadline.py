"""Events of time: decisions depend on the passage of time only through them."""

from ftcore.events.payload import Payload
from ftcore.events.registry import fact


@fact("deadline.expired")
class DeadlineExpired(Payload, frozen=True, kw_only=True):
    """A deadline of the folded state has passed.

    Args:
        key: its key, for example ``settle/3`` or ``action/r3.start``.
        due: when it expired, in nanoseconds since the epoch; a deadline of the same key that was set again meanwhile is
            still pending. 0: any deadline of that key.
    """

    key: str
    due: int = 0
