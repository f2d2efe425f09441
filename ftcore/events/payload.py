"""The base of all data of events.

House rule: it has no fields. A class of ``attrs`` takes twenty times as long to make, and there are a hundred: that was
a third of the time in which ``ftctl`` starts.
"""

import msgspec


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    """Data of an event, or a part of it."""
