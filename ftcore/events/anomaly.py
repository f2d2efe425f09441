"""Events that record what did not fit."""

import attrs

from ftcore.events.registry import decision


@decision("anomaly.observed", ignorable=True)
@attrs.frozen(kw_only=True)
class AnomalyObserved:
    """A machine met an event that its state does not accept; its state did not change.

    Args:
        machine: the machine, as ``node``.
        instance: which one, as ``node1``.
        state: the state it was and is in.
        event: the event's type.
    """

    machine: str
    instance: str
    state: str
    event: str
