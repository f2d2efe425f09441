"""Handlers of disruptions: observations that last until a fact ends them, and pauses of the training for them."""

from ftcore.events import worker
from ftcore.events.checkpoint import CheckpointFailed
from ftcore.events.envelope import Event
from ftcore.events.worker import DISRUPTIVE, STORAGE_AWAY
from ftcore.states import timers
from ftcore.states.disruption import DISRUPTION, DisruptionPhase, DisruptionState
from ftcore.states.fold.base import Changes, on, step
from ftcore.states.model import JobState, OperatorRequest


def key_of(kind: str, node: str) -> str:
    """The key of a disruption in ``EvidenceState.disruptions``: one per node, or one for the job's storage."""
    return kind if kind == STORAGE_AWAY else f"{kind}/{node}"


def begin(state: JobState, event: Event, kind: str, node: str, message: str) -> DisruptionState:
    """Note a disruption; one that is known already stays as it is."""
    new = DisruptionState(seq=event.seq, kind=kind, node=node, message=message)
    return state.evidence.disruptions.setdefault(key_of(kind, node), new)


def refused(state: JobState, event: Event, data: CheckpointFailed) -> None:
    """The storage has refused a node's shard."""
    found = begin(state, event, STORAGE_AWAY, data.node, data.reason)
    found.unwritten[data.node] = max(found.unwritten.get(data.node, (0, 0)), (data.round, data.step))


def written(
    state: JobState, event: Event, trigger: str, changes: Changes, node: str = "", moment: tuple[int, int] | None = None
) -> None:
    """The storage is no longer away for nodes that have written again, or have ended.

    Args:
        state: the folded state; changed.
        event: the event.
        trigger: what it is for the machine.
        changes: changes of machines; appended to.
        node: the node; empty: all of them.
        moment: round and step of what was written; None: the node has ended.
    """
    found = state.evidence.disruptions.get(STORAGE_AWAY)
    if found is None:
        return
    for name, lacking in list(found.unwritten.items()):
        if node in ("", name) and (moment is None or moment >= lacking):
            del found.unwritten[name]
    if not found.unwritten:
        end(state, event, STORAGE_AWAY, "", trigger, changes)


@on(worker.DisruptionEnded)
def _disruption_ended(state: JobState, event: Event, data: worker.DisruptionEnded, changes: Changes) -> None:
    if state.membership.current(data.node, data.incarnation) is not None:
        end(state, event, data.kind, data.node, "disruption.ended", changes)


def end(state: JobState, event: Event, kind: str, node: str, trigger: str, changes: Changes) -> None:
    """Forget a disruption, and request to resume a job that was paused for it alone."""
    key = key_of(kind, node)
    found = state.evidence.disruptions.pop(key, None)
    if found is not None:
        awaited = found.phase is DisruptionPhase.AWAITED
        _step(found, key, trigger, changes)
        timers.cancel(state, timers.DisruptionTimer(key))
        if awaited:
            _release(state, event, found, f"{found.subject} is over")


def expired(state: JobState, event: Event, key: str, changes: Changes) -> None:
    """Await a disruption no longer."""
    found = state.evidence.disruptions.get(key)
    if found is not None:
        _step(found, key, "deadline.expired", changes)
        _release(state, event, found, f"{found.subject} lasts too long")


def step_root(state: JobState, root: int, trigger: str, changes: Changes) -> None:
    """Step the disruption of an incident, if the incident is about one."""
    for key, found in state.evidence.disruptions.items():
        if found.seq == root:
            _step(found, key, trigger, changes)


def is_asked(state: JobState, root: int) -> bool:
    """Whether the chain is asked about the disruption of an incident for the first time."""
    found = state.evidence.disruptions.values()
    return any(each.seq == root and each.phase is DisruptionPhase.ASKED for each in found)


def keep_paused(state: JobState, request: OperatorRequest) -> None:
    """The job is paused for a request; if it is an operator's, only ``resume`` ends it."""
    state.requests.paused_for, state.requests.resume = request, None
    if state.awaited() is None:
        for key in state.evidence.disruptions:
            timers.cancel(state, timers.DisruptionTimer(key))


def is_about_disruption(state: JobState) -> bool:
    """Whether the open incident is to pause the workers for a disruption, or to resume them after it."""
    known, requests = state.incident, state.requests
    if known is None:
        return False
    if known.kind == "warning":
        return known.fault.detail in DISRUPTIVE
    policies = [each.seq for each in state.evidence.disruptions.values()]
    own = (*policies, requests.resume.seq) if requests.resume is not None else policies
    return known.kind == "request" and known.fault.detail in ("pause", "resume") and known.fault.root in own


def paused(state: JobState, event: Event, policy: str, patience_s: float | None, changes: Changes) -> None:
    """The workers wait at a step boundary for the disruption of the open incident, unless it is over."""
    assert state.incident is not None
    root, requests = state.incident.fault.root, state.requests
    step_root(state, root, "plan.applied/pause", changes)
    for key, found in state.evidence.disruptions.items():
        if found.seq == root and found.phase is DisruptionPhase.AWAITED:
            found.policy = policy
            requests.paused_for = requests.paused_for or _pause_for(found)
            requests.resume = None
            is_policys = state.awaited() is not None
            if is_policys and patience_s is not None and not timers.is_running(state, timers.DisruptionTimer(key)):
                timers.start(state, timers.DisruptionTimer(key), event.time, patience_s)
            return
    if requests.paused_for is None and requests.resume is None:
        requests.resume = _resume(event, policy, "what the training was paused for is over")


def resumed(state: JobState, trigger: str, changes: Changes) -> None:
    """The training goes on, whatever it was paused for."""
    state.requests.resume = None
    for key, found in state.evidence.disruptions.items():
        _step(found, key, trigger, changes)
        timers.cancel(state, timers.DisruptionTimer(key))


def _step(found: DisruptionState, key: str, trigger: str, changes: Changes) -> None:
    found.phase = step(DISRUPTION, key, found.phase, trigger, changes)


def _pause_for(found: DisruptionState) -> OperatorRequest:
    return OperatorRequest(seq=found.seq, command="pause", who=found.policy, why=found.subject)


def _resume(event: Event, policy: str, why: str) -> OperatorRequest:
    return OperatorRequest(seq=event.seq, command="resume", who=policy, why=why)


def _release(state: JobState, event: Event, found: DisruptionState, why: str) -> None:
    """Request to resume, unless the job is paused for another disruption or for an operator."""
    requests = state.requests
    if requests.paused_for is None or requests.paused_for.seq != found.seq:
        return
    known = state.evidence.disruptions.values()
    other = next((each for each in known if each.phase is DisruptionPhase.AWAITED), None)
    pause = _pause_for(other) if other is not None else None
    if requests.pending == requests.paused_for:
        requests.pending = pause
    requests.paused_for = pause
    if pause is None:
        requests.resume = _resume(event, found.policy, why)
