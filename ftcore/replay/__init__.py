"""Reading the past: fold a log to any point, verify its decisions, explain its incidents.

House rules: nothing here needs more than the events that it is handed; nothing reads a clock or a store. What is read
is fed event by event to a *reader*, so one pass over a log can serve several; ``read`` and ``read_async`` do the pass.
"""

from ftcore.replay.explain import Explainer, Failure, Incident, Phases
from ftcore.replay.reading import Folder, Reader, fold_log, fold_log_async, read, read_async
from ftcore.replay.verify import Mismatch, Verifier, VerifyReport, verify, verify_async

__all__ = [
    "Explainer",
    "Failure",
    "Folder",
    "Incident",
    "Mismatch",
    "Phases",
    "Reader",
    "Verifier",
    "VerifyReport",
    "fold_log",
    "fold_log_async",
    "read",
    "read_async",
    "verify",
    "verify_async",
]
