"""Protocols that the core needs from its environment, expressed in events and commands.

No signature here names a particular store, launcher or scheduler. ``EventLog`` has several adapters and one conformance
suite (``tests/conformance``). An embedding launcher replaces ``Supervisor``. ``Platform`` launches nodes; its
conformance kit is ``ftcore.testing.platform``.

Names are imported on first use: who reads a log needs neither platforms nor workers.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        OverviewMaker,
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
        NO_ROUND,
        BoundaryControl,
        DeepInspector,
        Inspector,
        Launch,
        ParkControl,
        Performed,
        Performer,
        Progress,
        Signs,
        Supervisor,
        Warmer,
        WorkerBoundary,
        WorkerExit,
    )

_MODULES = {
    "AppendOnlyLog": "ftcore.ports.log",
    "Archive": "ftcore.ports.log",
    "BoundaryControl": "ftcore.ports.workers",
    "Candidate": "ftcore.ports.log",
    "CapacityChanged": "ftcore.ports.platform",
    "Clock": "ftcore.ports.host",
    "DeepInspector": "ftcore.ports.workers",
    "EventLog": "ftcore.ports.log",
    "Floor": "ftcore.ports.log",
    "GROUP_BYTES_MAX": "ftcore.ports.log",
    "Handle": "ftcore.ports.transport",
    "Host": "ftcore.ports.host",
    "Inspector": "ftcore.ports.workers",
    "Journal": "ftcore.ports.host",
    "Launch": "ftcore.ports.workers",
    "LaunchRequest": "ftcore.ports.platform",
    "Leader": "ftcore.ports.log",
    "LeaderElection": "ftcore.ports.log",
    "Leadership": "ftcore.ports.log",
    "Listener": "ftcore.ports.transport",
    "LogStore": "ftcore.ports.log",
    "MaintenanceAnnounced": "ftcore.ports.platform",
    "MaintenanceOver": "ftcore.ports.platform",
    "NO_ROUND": "ftcore.ports.workers",
    "NodeEnded": "ftcore.ports.platform",
    "NodeWarned": "ftcore.ports.platform",
    "Occupant": "ftcore.ports.platform",
    "ParkControl": "ftcore.ports.workers",
    "Performed": "ftcore.ports.workers",
    "Performer": "ftcore.ports.workers",
    "Platform": "ftcore.ports.platform",
    "PlatformEvent": "ftcore.ports.platform",
    "Progress": "ftcore.ports.workers",
    "OverviewMaker": "ftcore.ports.log",
    "RetainedLog": "ftcore.ports.log",
    "SNAPSHOTS_KEPT": "ftcore.ports.log",
    "Signs": "ftcore.ports.workers",
    "Snapshot": "ftcore.ports.log",
    "Space": "ftcore.ports.log",
    "Stream": "ftcore.ports.transport",
    "Supervisor": "ftcore.ports.workers",
    "Transport": "ftcore.ports.transport",
    "Warmer": "ftcore.ports.workers",
    "WorkerBoundary": "ftcore.ports.workers",
    "WorkerExit": "ftcore.ports.workers",
}

__all__ = [
    "BoundaryControl",
    "Archive",
    "Candidate",
    "CapacityChanged",
    "Clock",
    "AppendOnlyLog",
    "EventLog",
    "LeaderElection",
    "OverviewMaker",
    "RetainedLog",
    "Floor",
    "GROUP_BYTES_MAX",
    "Handle",
    "PlatformEvent",
    "Host",
    "DeepInspector",
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
    "NO_ROUND",
    "NodeEnded",
    "NodeWarned",
    "Occupant",
    "ParkControl",
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


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'ftcore.ports' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
