"""What this ftcore does not know of a log that it reads."""

import msgspec

from ftcore.events.envelope import Event, Unknown
from ftcore.events.master import MasterElected
from ftcore.states.revisions import NEWEST


class UnknownParts(msgspec.Struct):
    """What is unknown of the events so far.

    Attributes:
        skipped: number of ignorable events of unknown types, by type.
        newer: the newest unknown revision of the decision rules that a master used; 0: all are known.
    """

    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    newer: int = 0

    def note(self, event: Event) -> None:
        """Note the next event."""
        if type(event.data) is Unknown:
            if event.ignorable:
                self.skipped[event.type] = self.skipped.get(event.type, 0) + 1
        elif type(event.data) is MasterElected and event.data.decides > NEWEST:
            self.newer = max(self.newer, event.data.decides)

    def copy(self) -> "UnknownParts":
        """A copy that changes on its own."""
        return UnknownParts(dict(self.skipped), self.newer)
