"""Protocols that the core needs from the outside, spoken in events and commands.

House rules: no word of a particular store, launcher or scheduler appears in a signature here. ``EventLog`` has several
adapters and one conformance suite (``tests/conformance``); a ``Supervisor`` is what an embedding launcher replaces; a
``Platform`` is where nodes come from, with a conformance kit in ``ftcore.testing.platform``.
"""

from ftcore.ports.host import (
    Clock,
    Host,
    Journal,
)
from ftcore.ports.log import (
    GROUP_BYTES_MAX,
    SNAPSHOTS_KEPT,
    Archive,
    Candidate,
    EventLog,
    Floor,
    Leader,
    Leadership,
    LogStore,
    Snapshot,
    Space,
)
from ftcore.ports.platform import (
    CapacityChanged,
    Happening,
    NodeEnded,
    NodeWarned,
    Occupant,
    Platform,
)
from ftcore.ports.transport import (
    Handle,
    Listener,
    Stream,
    Transport,
)
from ftcore.ports.workers import (
    Inspector,
    Launch,
    Performer,
    Progress,
    Signs,
    Supervisor,
    Warmer,
    WorkerExit,
)

__all__ = [
    "Archive",
    "Candidate",
    "CapacityChanged",
    "Clock",
    "EventLog",
    "Floor",
    "GROUP_BYTES_MAX",
    "Handle",
    "Happening",
    "Host",
    "Inspector",
    "Journal",
    "Launch",
    "Leader",
    "Leadership",
    "Listener",
    "LogStore",
    "NodeEnded",
    "NodeWarned",
    "Occupant",
    "Performer",
    "Platform",
    "Progress",
    "SNAPSHOTS_KEPT",
    "Signs",
    "Snapshot",
    "Space",
    "Stream",
    "Supervisor",
    "Transport",
    "Warmer",
    "WorkerExit",
]
