"""The fold: state + event -> state. It *is* the live machine of job, nodes, workers and incident.

House rules:
- pure: the result depends on the state and the event alone; the only time is the event's;
- it must accept every event ever written: meaning may be added, never changed;
- it never asks a policy and never forms a world: decisions are folded as recorded;
- it updates in place a state that it owns; who wants the old one copies it first;
- an event that some machine does not accept changes nothing there and is returned as a ``Change`` without a target.
"""

from ftcore.states.fold.base import Change, Changes
from ftcore.states.fold.folding import fold, is_duplicate, pending
from ftcore.states.timers import next_deadline

__all__ = ["Change", "Changes", "fold", "is_duplicate", "next_deadline", "pending"]
