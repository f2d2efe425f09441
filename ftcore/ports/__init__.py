"""Protocols that the core needs from its environment, expressed in events and commands.

No signature here names a particular store, launcher or scheduler. ``EventLog`` has several adapters and one conformance
suite (``tests/conformance``). An embedding launcher replaces ``Supervisor``. ``Platform`` launches nodes; its
conformance kit is ``ftcore.testing.platform``.
"""

from ftcore.ports.host import Clock, Host, Journal
from ftcore.ports.log import (
    GROUP_BYTES_MAX,
    SNAPSHOTS_KEPT,
    AppendOnlyLog,
    Archive,
    Candidate,
    EventLog,
    Floor,
    Leader,
    LeaderElection,
    Leadership,
    LogStore,
    RetainedLog,
    Snapshot,
    Space,
)
from ftcore.ports.platform import (
    CapacityChanged,
    LaunchRequest,
    MaintenanceAnnounced,
    MaintenanceOver,
    NodeEnded,
    NodeWarned,
    Occupant,
    Platform,
    PlatformEvent,
)
from ftcore.ports.transport import Handle, Listener, Stream, Transport
from ftcore.ports.workers import (
    BoundaryControl,
    Inspector,
    Launch,
    Performed,
    Performer,
    Progress,
    Signs,
    Supervisor,
    Warmer,
    WorkerBoundary,
    WorkerExit,
)

__all__ = [
    "BoundaryControl",
    "Archive",
    "Candidate",
    "CapacityChanged",
    "Clock",
    "AppendOnlyLog",
    "EventLog",
    "LeaderElection",
    "RetainedLog",
    "Floor",
    "GROUP_BYTES_MAX",
    "Handle",
    "PlatformEvent",
    "Host",
    "Inspector",
    "Journal",
    "Launch",
    "LaunchRequest",
    "Leader",
    "Leadership",
    "Listener",
    "LogStore",
    "MaintenanceAnnounced",
    "MaintenanceOver",
    "NodeEnded",
    "NodeWarned",
    "Occupant",
    "Performed",
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
    "WorkerBoundary",
    "WorkerExit",
]
