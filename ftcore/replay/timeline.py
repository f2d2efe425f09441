"""The timeline of an incident: actions beyond a plain restart, and their results; texts are in ``wording.py``."""

import attrs

STEPS_MAX = 200
"""Steps kept of one incident."""


@attrs.frozen(kw_only=True)
class Step:
    """One action or result.

    Args:
        seq: the event.
        type: its type.
        after_s: seconds since the incident was opened, by the master's clock.
        what: the event as a sentence.
    """

    seq: int
    type: str
    after_s: float
    what: str
