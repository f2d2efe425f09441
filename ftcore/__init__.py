"""ftcore keeps large distributed PyTorch jobs training through faults.

For launchers that embed ftcore: an ``Agent`` runs a node's workers through a ``Supervisor`` (default:
``LocalSupervisor``), a ``Master`` leads the job, and both use the job's event log (``open_log``). ``ftrun`` uses the
same names. For platforms that launch nodes: ``Platform`` and its argument types. For scripts: ``ftcore.worker``. Names
are imported on first use; none imports torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ftcore.version import __version__

if TYPE_CHECKING:
    from ftcore.events import Event
    from ftcore.events.job import JobSpec
    from ftcore.logs import open_log, open_store
    from ftcore.logs.formats import ExportFormat, ExportOutput
    from ftcore.platforms import PlatformAdapter, open_platform
    from ftcore.ports import (
        CapacityChanged,
        EventLog,
        Launch,
        LaunchRequest,
        LogStore,
        MaintenanceAnnounced,
        MaintenanceOver,
        NodeEnded,
        NodeWarned,
        Occupant,
        Platform,
        PlatformEvent,
        Progress,
        Supervisor,
        WorkerExit,
    )
    from ftcore.runtime.agent.agent import Agent
    from ftcore.runtime.agent.config import AgentConfig, Outcome
    from ftcore.runtime.agent.workers.output import Output
    from ftcore.runtime.agent.workers.pages import WorkerPage
    from ftcore.runtime.agent.workers.supervisor import LocalSupervisor
    from ftcore.runtime.master.master import Master
    from ftcore.runtime.observers import Observed, ObservedMaster, ObservedNode, ObserverAdapter
    from ftcore.runtime.wire.frames import Submission, submission
    from ftcore.runtime.wire.security import Security

_MODULES = {
    "Agent": "ftcore.runtime.agent.agent",
    "AgentConfig": "ftcore.runtime.agent.config",
    "CapacityChanged": "ftcore.ports",
    "Event": "ftcore.events",
    "EventLog": "ftcore.ports",
    "ExportFormat": "ftcore.logs.formats",
    "ExportOutput": "ftcore.logs.formats",
    "JobSpec": "ftcore.events.job",
    "Launch": "ftcore.ports",
    "LaunchRequest": "ftcore.ports",
    "LocalSupervisor": "ftcore.runtime.agent.workers.supervisor",
    "LogStore": "ftcore.ports",
    "MaintenanceAnnounced": "ftcore.ports",
    "MaintenanceOver": "ftcore.ports",
    "Master": "ftcore.runtime.master.master",
    "NodeEnded": "ftcore.ports",
    "NodeWarned": "ftcore.ports",
    "Observed": "ftcore.runtime.observers",
    "ObservedMaster": "ftcore.runtime.observers",
    "ObservedNode": "ftcore.runtime.observers",
    "ObserverAdapter": "ftcore.runtime.observers",
    "Occupant": "ftcore.ports",
    "Outcome": "ftcore.runtime.agent.config",
    "Output": "ftcore.runtime.agent.workers.output",
    "Platform": "ftcore.ports",
    "PlatformAdapter": "ftcore.platforms",
    "PlatformEvent": "ftcore.ports",
    "Progress": "ftcore.ports",
    "Security": "ftcore.runtime.wire.security",
    "Submission": "ftcore.runtime.wire.frames",
    "Supervisor": "ftcore.ports",
    "WorkerExit": "ftcore.ports",
    "WorkerPage": "ftcore.runtime.agent.workers.pages",
    "open_log": "ftcore.logs",
    "open_platform": "ftcore.platforms",
    "open_store": "ftcore.logs",
    "submission": "ftcore.runtime.wire.frames",
}

__all__ = [
    "Agent",
    "AgentConfig",
    "CapacityChanged",
    "Event",
    "EventLog",
    "ExportFormat",
    "ExportOutput",
    "JobSpec",
    "Launch",
    "LaunchRequest",
    "LocalSupervisor",
    "LogStore",
    "MaintenanceAnnounced",
    "MaintenanceOver",
    "Master",
    "NodeEnded",
    "NodeWarned",
    "Observed",
    "ObservedMaster",
    "ObservedNode",
    "ObserverAdapter",
    "Occupant",
    "Outcome",
    "Output",
    "Platform",
    "PlatformAdapter",
    "PlatformEvent",
    "Progress",
    "Security",
    "Submission",
    "Supervisor",
    "WorkerExit",
    "WorkerPage",
    "__version__",
    "open_log",
    "open_platform",
    "open_store",
    "submission",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'ftcore' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
