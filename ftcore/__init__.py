"""ftcore keeps large distributed PyTorch jobs training through faults.

For launchers that embed it: an ``Agent`` runs a node's workers through a ``Supervisor`` (ftcore's own is
``LocalSupervisor``), a ``Master`` leads, both meet at the job's event log (``open_log``). ``ftrun`` is a thin user of
the same names. For those whose nodes come from elsewhere: ``Platform`` and the values that it speaks in. For scripts:
``ftcore.worker``. Everything here is imported when it is first used; nothing imports
torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ftcore.version import __version__

if TYPE_CHECKING:
    from ftcore.events import Event
    from ftcore.events.job import JobSpec
    from ftcore.logs import open_log, open_store
    from ftcore.platforms import open_platform
    from ftcore.ports import (
        CapacityChanged,
        EventLog,
        Happening,
        Launch,
        LogStore,
        NodeEnded,
        NodeWarned,
        Occupant,
        Platform,
        Progress,
        Supervisor,
        WorkerExit,
    )
    from ftcore.runtime.agent.agent import Agent
    from ftcore.runtime.agent.config import AgentConfig, Outcome
    from ftcore.runtime.agent.supervisor import LocalSupervisor, Output
    from ftcore.runtime.master.master import Master
    from ftcore.runtime.wire.frames import Submission, submission
    from ftcore.runtime.wire.security import Security

_WHERE = {
    "Agent": "ftcore.runtime.agent.agent",
    "AgentConfig": "ftcore.runtime.agent.config",
    "CapacityChanged": "ftcore.ports",
    "Event": "ftcore.events",
    "EventLog": "ftcore.ports",
    "Happening": "ftcore.ports",
    "JobSpec": "ftcore.events.job",
    "Launch": "ftcore.ports",
    "LocalSupervisor": "ftcore.runtime.agent.supervisor",
    "LogStore": "ftcore.ports",
    "Master": "ftcore.runtime.master.master",
    "NodeEnded": "ftcore.ports",
    "NodeWarned": "ftcore.ports",
    "Occupant": "ftcore.ports",
    "Outcome": "ftcore.runtime.agent.config",
    "Output": "ftcore.runtime.agent.supervisor",
    "Platform": "ftcore.ports",
    "Progress": "ftcore.ports",
    "Security": "ftcore.runtime.wire.security",
    "Submission": "ftcore.runtime.wire.frames",
    "Supervisor": "ftcore.ports",
    "WorkerExit": "ftcore.ports",
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
    "Happening",
    "JobSpec",
    "Launch",
    "LocalSupervisor",
    "LogStore",
    "Master",
    "NodeEnded",
    "NodeWarned",
    "Occupant",
    "Outcome",
    "Output",
    "Platform",
    "Progress",
    "Security",
    "Submission",
    "Supervisor",
    "WorkerExit",
    "__version__",
    "open_log",
    "open_platform",
    "open_store",
    "submission",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module 'ftcore' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
