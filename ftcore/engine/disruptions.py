"""Faults of disruptions, and of requests that follow from them. Pure.

A disruption opens a warning, so that a policy may pause the training until it ends (``step_pause``). If it lasts longer
than the policy waits, a node under maintenance is drained, and an outage of the storage opens a second warning. If the
job is still paused after that, it is resumed.
"""

from ftcore.events.incident import Fault
from ftcore.events.worker import MAINTENANCE
from ftcore.faults.taxonomy import DISRUPTIONS as CLASSES
from ftcore.faults.taxonomy import FaultClass
from ftcore.states.disruption import DisruptionPhase, DisruptionState
from ftcore.states.model import JobState
from ftcore.states.node import NodePhase
from ftcore.states.revisions import DISRUPTIONS, follows


def next_incident(state: JobState) -> tuple[str, Fault] | None:
    """The kind and the fault of the next incident that a disruption calls for; None if none does."""
    if not follows(state, DISRUPTIONS):
        return None
    for found in state.evidence.disruptions.values():
        if found.phase is DisruptionPhase.NEW and _is_known(state) and _concerns(state, found):
            return "warning", _fault(found)
        if found.phase is DisruptionPhase.EXPIRED and _concerns(state, found):
            return ("request", _drain(found)) if found.kind == MAINTENANCE else ("warning", _fault(found))
    resume = state.requests.resume
    if resume is not None and state.membership.count(NodePhase.PAUSED):
        return "request", request_fault("resume", "", resume.seq, resume.why)
    return None


def _concerns(state: JobState, found: DisruptionState) -> bool:
    """Whether it disturbs the training: maintenance of a node in standby does not."""
    world = state.rounds.world
    return found.kind != MAINTENANCE or (world is not None and world.seat(found.node) is not None)


def _is_known(state: JobState) -> bool:
    """Whether it is known what the workers can do: each node has completed a step of the round."""
    world = state.rounds.world
    return world is not None and world.stepped >= len(world.members)


def _fault(found: DisruptionState) -> Fault:
    subject = f"{found.node}: maintenance" if found.kind == MAINTENANCE else f"{found.node} cannot write checkpoints"
    return Fault(
        cls=str(CLASSES[found.kind]),
        detail=found.kind,
        nodes=(found.node,) if found.kind == MAINTENANCE else (),
        ranks=(),
        root=found.seq,
        summary=f"{subject}: {found.message}" if found.message else subject,
    )


def _drain(found: DisruptionState) -> Fault:
    return request_fault("drain", found.node, found.seq, f"{found.subject} lasts too long: it is to be drained")


def request_fault(command: str, node: str, root: int, summary: str) -> Fault:
    """The fault of a request, of an operator or after a disruption.

    Args:
        command: the requested operation.
        node: the node that it is about; empty: none.
        root: seq of the fact that it follows from.
        summary: one line of text.
    """
    return Fault(
        cls=str(FaultClass.REQUEST),
        detail=command,
        nodes=(node,) if node else (),
        ranks=(),
        root=root,
        summary=summary,
    )
