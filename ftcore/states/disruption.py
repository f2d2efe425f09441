"""The machine of a disruption: an observation that lasts until a fact ends it, such as a node's maintenance.

House rule: the chain is asked once when a disruption begins, and once more if the training was paused for it too long.
So a disruption that nothing ends cannot pause a job twice.
"""

from enum import StrEnum

import attrs

from ftcore.events.worker import MAINTENANCE
from ftcore.states.table import Ignored, Machine, Row, rows


class DisruptionPhase(StrEnum):
    """Phases of a disruption."""

    NEW = "new"
    """It was observed; no incident was opened for it yet."""
    ASKED = "asked"
    """The chain is asked, or was."""
    AWAITED = "awaited"
    """A policy has paused the training until it ends."""
    EXPIRED = "expired"
    """It lasts longer than the policy waits; the chain is asked again."""
    GIVEN_UP = "given_up"
    """Nothing waits for it any more."""
    ENDED = "ended"
    """It is over, or its node is."""


C = DisruptionPhase
_LASTS = tuple(phase for phase in C if phase is not C.ENDED)
_ENDS = ("disruption.ended", "shard.persisted", "checkpoint.committed", "node.left", "node.lost", "node.joined/again")
_RESUMES = ("operator.commanded/resume", "plan.applied/resume")

DISRUPTION = Machine(
    name="disruption",
    doc="A disruption that lasts until a fact ends it: maintenance of a node, or storage that refuses checkpoints.",
    states=DisruptionPhase,
    initial=C.NEW,
    finals=(C.ENDED,),
    table=(
        Row("incident.opened", C.NEW, C.ASKED),
        Row("incident.opened", C.EXPIRED, C.GIVEN_UP),
        Row("incident.rediagnosed/fault", C.ASKED, C.NEW),
        Row("plan.applied/pause", C.ASKED, C.AWAITED),
        Row("deadline.expired", C.AWAITED, C.EXPIRED),
        *(row for trigger in _RESUMES for row in rows(trigger, (C.AWAITED, C.EXPIRED), C.GIVEN_UP)),
        *(row for trigger in _ENDS for row in rows(trigger, _LASTS, C.ENDED)),
    ),
    ignored=(
        Ignored("incident.opened", (C.AWAITED,), "the workers are to be paused again after a fault"),
        Ignored("incident.rediagnosed/fault", (C.AWAITED, C.EXPIRED, C.GIVEN_UP), "its own incident was closed before"),
        Ignored("plan.applied/pause", (C.AWAITED,), "the workers were paused again after a fault"),
        Ignored("plan.applied/pause", (C.EXPIRED, C.GIVEN_UP), "it was given up while the workers were being paused"),
        *(Ignored(trigger, (C.NEW, C.ASKED, C.GIVEN_UP), "the training is not paused for it") for trigger in _RESUMES),
    ),
)


@attrs.define(kw_only=True)
class DisruptionState:
    """A disruption that has not ended.

    Args:
        seq: the fact that observed it.
        kind: ``maintenance-notice`` or ``storage-away``.
        node: the node that it is about, or that observed it.
        message: the observer's message.
        phase: the phase of its machine.
        policy: the policy that paused the training for it; empty: none.
        unwritten: by node that could not write to the storage, the round and step of the newest state that it has not
            written.
    """

    seq: int
    kind: str
    node: str
    message: str
    phase: DisruptionPhase = DisruptionPhase.NEW
    policy: str = ""
    unwritten: dict[str, tuple[int, int]] = attrs.field(factory=dict)

    @property
    def subject(self) -> str:
        """The disruption in messages."""
        return f"the maintenance of {self.node}" if self.kind == MAINTENANCE else "the outage of the storage"
