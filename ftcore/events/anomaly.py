"""Events that a state machine did not accept."""

from ftcore.events.payload import Payload
from ftcore.events.registry import decision


@decision("anomaly.observed", ignorable=True)
class AnomalyObserved(Payload, frozen=True, kw_only=True):
    """A state machine received an event that its state does not accept; the state did not change.

    Args:
        machine: the kind of machine, for example ``node``.
        instance: its name, for example ``node1``.
        state: its state, before and after.
        event: the event's type.
    """

    machine: str
    instance: str
    state: str
    event: str
