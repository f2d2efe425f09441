"""Handlers of disruptions: observations that last until a fact ends them, and pauses of the training for them."""

from ftcore.events import worker
from ftcore.events.envelope import Event
from ftcore.events.worker import STORAGE_AWAY
from ftcore.states import timers
from ftcore.states.disruption import DISRUPTION, DisruptionPhase, DisruptionState
from ftcore.states.fold.base import Changes, on, step
from ftcore.states.model import JobState, OperatorRequest


def key_of(kind: str, node: str) -> str:
    """The key of a disruption in ``EvidenceState.disruptions``: one per node, or one for the job's storage."""
    return kind if kind == STORAGE_AWAY else f"{kind}/{node}"


def begin(state: JobState, event: Event, kind: str, node: str, message: str) -> None:
    """Note a disruption; one that is known already stays as it is."""
    key = key_of(kind, node)
    if key not in state.evidence.disruptions:
        state.evidence.disruptions[key] = DisruptionState(seq=event.seq, kind=kind, node=node, message=message)


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
            if patience_s is not None and not timers.is_running(state, timers.DisruptionTimer(key)):
                timers.start(state, timers.DisruptionTimer(key), event.time, patience_s)
            return
    if requests.paused_for is None and requests.resume is None:
        requests.resume = _resume(event, policy, "what the training was paused for is over")


def resumed(state: JobState, trigger: str, changes: Changes) -> None:
    """The training goes on, whatever it was paused for."""
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
