"""What was done about an incident: the orders beyond a plain restart, and what came of them.

House rules: one line to an event, worded in ``wording.py``.
"""

import attrs

STEPS_MAX = 200
"""Steps kept of one incident."""


@attrs.frozen(kw_only=True)
class Step:
    """One thing that was done, or came of it.

    Args:
        seq: the event.
        type: its type.
        after_s: seconds since the incident was opened, by the master's clock.
        what: in words.
    """

    seq: int
    type: str
    after_s: float
    what: str
