"""Reading a log: fold it to any point, verify its decisions, explain its incidents, account for its time.

House rules: the only input is events; no clock or store is read. ``read`` and ``read_async`` feed events to readers, so
one pass over a log can serve several.
"""

from ftcore.faults.failure import Failure
from ftcore.replay.accounts import CauseCost, GoodputReport, IncidentCost, NodeUse
from ftcore.replay.as_json import event_json
from ftcore.replay.explain import Explainer, Incident
from ftcore.replay.goodput import GoodputLedger
from ftcore.replay.phases import Phases
from ftcore.replay.reading import Folder, Reader, fold_log, fold_log_async, read, read_async
from ftcore.replay.verify import Mismatch, Verifier, VerifyReport, verify, verify_async
from ftcore.states.model import JobState

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
