"""The fold: state + event -> state. It runs the machines of job, nodes, workers and incident.

House rules:
- The fold is pure: its result depends only on the state and the event; its only clock is the event's time.
- It accepts every event ever written: meaning may be added, never changed.
- It never asks a policy and never forms a world: decisions are folded as recorded.
- It changes the state in place; a caller that needs the old state copies it first.
- An event that a machine does not accept leaves the machine unchanged and is returned as a ``Change`` without a target.
"""

from ftcore.states.fold.base import Change, Changes
from ftcore.states.fold.folding import fold, is_duplicate, pending
from ftcore.states.timers import next_deadline

__all__ = ["Change", "Changes", "fold", "is_duplicate", "next_deadline", "pending"]
