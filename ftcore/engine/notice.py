"""Open an incident because of a fact, or amend the open one.

There are four kinds, the most severe first. A *fault* interrupts the training. A *request* comes from an operator. A
*warning* is a problem that the training survives by itself. An *opportunity* is a chance to train on more nodes. The
last three are dropped if no policy takes them, and a fault takes precedence over them. Disruptions open warnings and
requests (``disruptions.py``).
"""

from functools import lru_cache
from itertools import islice

import msgspec

from ftcore.engine.dispatch import order_release
from ftcore.engine.disruptions import next_incident, request_fault
from ftcore.engine.ranks import Ranks
from ftcore.engine.turn import Turn
from ftcore.errors import UsageError
from ftcore.events.incident import Fault, IncidentOpened, IncidentRediagnosed, IncidentResolved
from ftcore.events.node import NodeQuarantined
from ftcore.events.worker import ADVISORY, DISRUPTIVE
from ftcore.faults.correlate import correlate
from ftcore.faults.extra import extra_rules
from ftcore.faults.rule import Rule
from ftcore.faults.rules.program import GLOO_PEER_HANGS
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import PlanKind
from ftcore.policies.traits import Trait, having
from ftcore.states.evidence import Report
from ftcore.states.model import IncidentState, JobState, OperatorRequest
from ftcore.states.node import NodePhase
from ftcore.states.norms import stops_step
from ftcore.states.phases import has_ended, is_deferred, is_running, is_up, opens_faults
from ftcore.states.revisions import NO_CULPRIT, PEER_NOT_HANG, READY_FIRST, WARM_FIRST, follows
from ftcore.states.world import usable
from ftcore.wording import plural


def notice(turn: Turn, since: int) -> None:
    """Open or amend an incident because of reports of this run from ``since`` on, or because of a request."""
    state = turn.state
    if has_ended(state):
        return
    if state.requests.stop is not None:
        _notice_stop(turn, state.requests.stop, since)
    elif any(r.seq >= since and _is_of_run(state, r) for r in state.evidence.reports):
        _notice_reports(turn)
    elif is_deferred(state.incident):
        _notice_stricter(turn)
    elif state.incident is None and is_up(state):
        notice_calm(turn)


def _notice_stop(turn: Turn, stop: OperatorRequest, since: int) -> None:
    """Open the request to stop, in place of any other incident. A fault in a later round starts the chain again."""
    state, incident = turn.state, turn.state.incident
    if incident is None or incident.fault.root != stop.seq:
        _open_or_amend(turn, "request", _request_fault(stop))
    elif _kind_of_plan(incident) == PlanKind.RESTART and any(
        r.seq >= since and r.round > incident.round for r in state.evidence.reports
    ):
        turn.emit(
            IncidentRediagnosed(kind="request", fault=incident.fault, revision=incident.revision + 1),
            incident=incident.id,
        )


def _notice_stricter(turn: Turn) -> None:
    """If an operator asks to evict a node that is being drained, ask the chain again about the new request."""
    incident, request = turn.state.incident, turn.state.requests.pending
    assert incident is not None
    if request is None or request.command != "evict" or request.seq == incident.fault.root:
        return
    if incident.kind == "request" and request.node in incident.plan_in_force().terms.exclude:
        _open_or_amend(turn, "request", _request_fault(request))


def notice_calm(turn: Turn) -> None:
    """Open the pending request, what a disruption calls for, or an opportunity, when there is no other incident."""
    state = turn.state
    if state.requests.pending is not None:
        _open_request(turn, state.requests.pending)
    elif (found := next_incident(state)) is not None:
        _open_or_amend(turn, *found)
    elif state.history.offered == 0 and is_running(state) and (count := _spare(state)):
        _open_or_amend(turn, "opportunity", _offer(turn, count))


def _open_request(turn: Turn, request: OperatorRequest) -> None:
    """Open the incident of a request; to drain or evict a standby or lost node needs no plan and is done at once."""
    _open_or_amend(turn, "request", _request_fault(request))
    node, incident = turn.state.membership.nodes.get(request.node), turn.state.incident
    if request.command not in ("drain", "evict") or node is None:
        return
    lost = not node.alive and follows(turn.state, READY_FIRST)
    if node.phase is not NodePhase.STANDBY and not lost:
        return
    assert incident is not None
    if request.command == "evict":
        turn.emit(NodeQuarantined(node=node.node, reason=incident.fault.summary), incident=incident.id)
    if not lost:
        order_release(turn, (node.node,), incident.fault.summary, incident.id)
    turn.emit(IncidentResolved(policy="", outcome="released"), incident=incident.id)


def _notice_reports(turn: Turn) -> None:
    state, incident = turn.state, turn.state.incident
    reports = [report for report in state.evidence.reports if _is_of_run(state, report)]
    advisory = all(report.kind in ADVISORY and not stops_step(state, report.kind, report.source) for report in reports)
    kind = "warning" if advisory else "fault"
    if incident is None:
        if opens_faults(state) and (kind == "fault" or is_up(state)):
            _open_or_amend(turn, kind, _read(state))
        return
    pauses = incident.fault.detail in DISRUPTIVE  # its plan pauses the workers: a warning waits until it comes again
    trains = (incident.kind == "warning" and not pauses) or is_deferred(incident)
    if _kind_of_plan(incident) != PlanKind.END and (kind == "fault" or trains) and not _is_echo(incident, reports):
        _open_or_amend(turn, kind, _read(state))


def _kind_of_plan(incident: IncidentState) -> str:
    """The kind of the plan in force; empty if there is none."""
    return incident.plan.kind if incident.plan is not None else ""


def _read(state: JobState) -> Fault:
    evidence, precedes = state.evidence, follows(state, NO_CULPRIT)
    return correlate(evidence.reports, evidence.hits, job_rules(state), Ranks(state), worker_precedes=precedes)


def job_rules(state: JobState) -> tuple[Rule, ...]:
    """The job's own rules, which are applied before the built-in ones."""
    rules = _rules(msgspec.json.encode(state.policy.rules))
    return rules if follows(state, PEER_NOT_HANG) else (*rules, GLOO_PEER_HANGS)


@lru_cache(maxsize=4)
def _rules(recorded: bytes) -> tuple[Rule, ...]:
    """The job's own rules; empty if a newer ftcore recorded rules that this version cannot read."""
    try:
        return extra_rules(msgspec.json.decode(recorded), "policy.loaded: rules")
    except UsageError:
        return ()


def _is_echo(incident: IncidentState, reports: list[Report]) -> bool:
    """Whether all reports since the plan of a request began are failures of the old round's workers."""
    plan = incident.plan
    if incident.kind == "fault" or plan is None or plan.kind != PlanKind.RESTART or is_deferred(incident):
        return False
    if plan.hold is not None:
        return False  # the workers are not being stopped yet
    new = [report for report in reports if report.seq > plan.taken_at]
    return all(report.type == "worker.failed" and report.round <= incident.round for report in new)


def _is_of_run(state: JobState, report: Report) -> bool:
    """Whether the report is about a round or an order of this run."""
    return report.round >= state.rounds.first or report.type == "action.failed"


def _request_fault(request: OperatorRequest) -> Fault:
    what = {"stop": "the end of the run", "checkpoint": "a checkpoint"}.get(request.command)
    what = what or f"`{request.command}{f' {request.node}' if request.node else ''}`"
    return request_fault(request.command, request.node, request.seq, f"{request.who} asked for {what}")


def _spare(state: JobState) -> int:
    """The size that the world could grow to with the standby nodes; 0 if it cannot grow."""
    spec, world = state.spec, state.rounds.world
    if spec is None or world is None or not state.membership.count(NodePhase.STANDBY):
        return 0
    if not having(state.policy.chain, Trait.GROWS):
        return 0
    membership = state.membership
    cold = len(membership.cold.keys() - membership.unchecked.keys()) if follows(state, WARM_FIRST) else 0
    count = usable(membership.ready() - cold, spec)
    return count if count > len(world.members) else 0


def _offer(turn: Turn, count: int) -> Fault:
    state = turn.state
    assert state.rounds.world is not None
    count_standby = state.membership.count(NodePhase.STANDBY)
    # New nodes are last, so a reversed scan finds them without passing thousands that train.
    standbys = (node for node in reversed(state.membership.nodes.values()) if node.phase is NodePhase.STANDBY)
    named = sorted(islice(standbys, min(count_standby, 16)), key=lambda node: node.ordinal)
    available = plural(count_standby, "standby node")
    return Fault(
        cls=str(FaultClass.REQUEST),
        detail="grow",
        nodes=tuple(node.node for node in named),
        ranks=(),
        root=turn.fact.seq,
        summary=f"{available}: {count} instead of {len(state.rounds.world.members)} nodes could train",
    )


def _open_or_amend(turn: Turn, kind: str, fault: Fault) -> None:
    state = turn.state
    incident = state.incident
    if incident is None:
        turn.emit(IncidentOpened(kind=kind, fault=fault), incident=f"i{state.incidents + 1}")
    elif fault != incident.fault or kind != incident.kind or _order_failed(turn):
        revision = incident.revision + (1 if _is_worse(turn, incident, kind, fault) else 0)
        turn.emit(IncidentRediagnosed(kind=kind, fault=fault, revision=revision), incident=incident.id)


def _order_failed(turn: Turn) -> bool:
    """Whether an order failed in this turn; then the plan failed, even if the diagnosis is the same as before."""
    newest = turn.state.evidence.reports[-1] if turn.state.evidence.reports else None
    return newest is not None and newest.type == "action.failed" and newest.seq > turn.fact.seq


def _is_worse(turn: Turn, incident: IncidentState, kind: str, fault: Fault) -> bool:
    """Whether the new diagnosis makes the chain start again.

    It does if the kind, the class or the request changed, if there was a fault in the new round, if an order for the
    new round or a health check failed, or if a process or node was lost that the plan needs.
    """
    newest = turn.state.evidence.reports[-1] if turn.state.evidence.reports else None
    if kind != incident.kind or fault.cls != incident.fault.cls:
        return True
    if kind == "request":
        return fault.root != incident.fault.root
    if newest is None:
        return False
    if newest.round > incident.round or newest.type in ("action.failed", "health.judged"):
        return True
    plan = incident.plan
    if plan is None or newest.seq <= plan.taken_at or newest.type == "fault.observed":
        return False
    terms = plan.terms
    if plan.kind == PlanKind.IN_PLACE:
        return terms.then != "continue"
    needs_nodes = bool(terms.replace or terms.want or terms.patience_s is not None or terms.survivors == "park")
    return needs_nodes and newest.rank < 0 and newest.node not in terms.exclude
