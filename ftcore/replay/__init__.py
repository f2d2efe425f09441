"""Reading a log: fold it to any point, verify its decisions, explain its incidents, account for its time.

House rules: the only input is events; no clock or store is read. ``read`` and ``read_async`` feed events to readers, so
one pass over a log can serve several. Names are imported on first use: a command that selects events needs no engine.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ftcore.faults.failure import Failure
    from ftcore.replay.accounts import CauseCost, GoodputReport, IncidentCost, NodeUse
    from ftcore.replay.as_json import event_json
    from ftcore.replay.explain import Explainer, Incident
    from ftcore.replay.goodput import GoodputLedger
    from ftcore.replay.phases import Phases
    from ftcore.replay.reading import Folder, Reader, fold_log, fold_log_async, read, read_async
    from ftcore.replay.verification import Mismatch, Verifier, VerifyReport, verify, verify_async
    from ftcore.states.model import JobState

_MODULES = {
    "CauseCost": "ftcore.replay.accounts",
    "Explainer": "ftcore.replay.explain",
    "Failure": "ftcore.faults.failure",
    "Folder": "ftcore.replay.reading",
    "GoodputLedger": "ftcore.replay.goodput",
    "GoodputReport": "ftcore.replay.accounts",
    "Incident": "ftcore.replay.explain",
    "IncidentCost": "ftcore.replay.accounts",
    "JobState": "ftcore.states.model",
    "Mismatch": "ftcore.replay.verification",
    "NodeUse": "ftcore.replay.accounts",
    "Phases": "ftcore.replay.phases",
    "Reader": "ftcore.replay.reading",
    "Verifier": "ftcore.replay.verification",
    "VerifyReport": "ftcore.replay.verification",
    "event_json": "ftcore.replay.as_json",
    "fold_log": "ftcore.replay.reading",
    "fold_log_async": "ftcore.replay.reading",
    "read": "ftcore.replay.reading",
    "read_async": "ftcore.replay.reading",
    "verify": "ftcore.replay.verification",
    "verify_async": "ftcore.replay.verification",
}

__all__ = [
    "CauseCost",
    "Explainer",
    "Failure",
    "Folder",
    "GoodputLedger",
    "GoodputReport",
    "Incident",
    "IncidentCost",
    "JobState",
    "Mismatch",
    "NodeUse",
    "Phases",
    "Reader",
    "Verifier",
    "VerifyReport",
    "event_json",
    "fold_log",
    "fold_log_async",
    "read",
    "read_async",
    "verify",
    "verify_async",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'ftcore.replay' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
