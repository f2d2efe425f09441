"""Decisions: what follows from a fact, given the folded state. Pure.

The order of a turn: notice (does this fact open an incident, or change the reading of the open one?), consult (ask the
chain), then advance (move on whatever can be moved on) until nothing moves. ``advance`` is driven by the state alone:
a new master that folds the log and turns the wheel once goes on exactly where the old one stopped.

Each ``_advance_*`` function returns whether it decided anything.
"""

from collections.abc import Callable

from ftcore.commands import Command, OpenStore, ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionDone, ActionFailed, ActionOrdered, ActionSuperseded
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import Event
from ftcore.events.incident import (
    Fault,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import JobFinished, JobUnparked
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import PolicyConsidered
from ftcore.events.world import MEMBERS_PER_EVENT, RoundPlanned, RoundStarted, WorldFormed, WorldMembers
from ftcore.faults.correlate import correlate
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import PlanKind, Take
from ftcore.policies.chain import consult
from ftcore.states.incident import IncidentPhase
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.model import ActionState, IncidentState, JobState, NodeState, Report
from ftcore.states.node import ACTIVE, NodePhase
from ftcore.states.world import Volunteer, digest, form_world, usable

NAMES_MAX = 64
"""Names of joined and gone nodes in ``world.formed``; the members events hold all."""

STORE_DEADLINE_S = 60.0
"""A node that cannot open a store in this time is treated as unable to."""

STOP_MARGIN_S = 30.0
"""Beyond the grace: reaping, killing of what ignored TERM, and a slow wire."""


def turn(state: JobState, fact: Event) -> list[Event]:
    """Fold a fact and decide what follows from it.

    Args:
        state: the folded state before the fact; changed in place, speculatively (see ``engine/turn.py``).
        fact: the fact, sequenced.

    Returns:
        The group to append: the fact, then its decisions.
    """
    under_way = Turn(state, fact)
    decide(under_way)
    return under_way.events


def decide(turn: Turn) -> None:
    """Decide everything that follows from the turn's fact."""
    state = turn.state
    if state.phase is JobPhase.STUCK:
        _decide_stuck(turn)
        return
    _expire(turn)
    _notice(turn, turn.fact.seq)
    _advance(turn)


def _advance(turn: Turn) -> None:
    while any(advance(turn) for advance in _ADVANCE_IN[turn.state.phase]):
        assert len(turn.events) < 100_000, "the wheel does not come to rest"


# --- noticing --------------------------------------------------------------------------------------------------------


def _decide_stuck(turn: Turn) -> None:
    data = turn.fact.data
    if isinstance(data, OperatorCommanded) and data.command == "resume":
        turn.emit(JobUnparked(who=data.who))
        _catch_up(turn)
    elif isinstance(data, OperatorCommanded) and data.command == "stop":
        known = turn.state.incident
        if known is not None:
            turn.emit(IncidentResolved(policy="stop", outcome="ended"), incident=known.id)
        turn.emit(JobFinished(outcome="stopped", exit_code=data.exit_code, reason=f"{data.who} stopped a stuck job"))
        _advance_release(turn)


def _catch_up(turn: Turn) -> None:
    """Decide about what came while the job was stuck, when facts were folded and nothing was decided."""
    state = turn.state
    for ordered in list(state.actions.values()):
        if not isinstance(ordered.command, ReleaseNode) and f"action/{ordered.effect}" not in state.deadlines:
            _fail(turn, ordered)
    _notice(turn, 0)
    _advance(turn)


def _expire(turn: Turn) -> None:
    """An order that was not answered in time has failed."""
    data = turn.fact.data
    if isinstance(data, DeadlineExpired) and data.key.startswith("action/"):
        ordered = turn.state.actions.get(data.key.removeprefix("action/"))
        if ordered is not None:
            _fail(turn, ordered)


def _fail(turn: Turn, ordered: ActionState) -> None:
    names = ", ".join(list(ordered.waiting)[:NAMES_MAX])
    turn.emit(ActionFailed(effect=ordered.effect, reason=f"no answer in time from {names}"))


def _notice(turn: Turn, since: int) -> None:
    """Open or amend an incident, if a report of this run from that seq on, or an operator, gives a reason to."""
    state = turn.state
    if state.phase in ENDED:
        return
    if state.stop is not None and (state.incident is None or state.incident.kind != "request"):
        _open_or_amend(turn, "request", _request(state))
    elif any(r.seq >= since and _is_of_run(state, r) for r in state.reports) and _may_fault(state):
        _open_or_amend(turn, "fault", correlate(state.reports))


def _is_of_run(state: JobState, report: Report) -> bool:
    """Whether the report is of a round of this run, or of an order that this run gave."""
    return report.round >= state.round_first or report.type == "action.failed"


def _may_fault(state: JobState) -> bool:
    """Whether reports open or amend an incident now: not before a round is planned, not once the end is decided."""
    if state.incident is not None:
        return state.incident.kind == "fault" and state.incident.plan != PlanKind.END
    return state.phase in (JobPhase.FORMING, JobPhase.STARTING, JobPhase.RUNNING)


def _request(state: JobState) -> Fault:
    assert state.stop is not None
    return Fault(
        cls=str(FaultClass.REQUEST),
        detail="stop",
        nodes=(),
        ranks=(),
        root=state.stop.seq,
        summary=f"{state.stop.who} asked for the end of the run",
    )


def _open_or_amend(turn: Turn, kind: str, fault: Fault) -> None:
    state = turn.state
    known = state.incident
    if known is None:
        turn.emit(IncidentOpened(kind=kind, fault=fault), incident=f"i{state.incidents + 1}")
    elif fault != known.fault or kind != known.kind or _order_failed(turn):
        revision = known.revision + (1 if _is_worse(state, known, kind, fault) else 0)
        turn.emit(IncidentRediagnosed(kind=kind, fault=fault, revision=revision), incident=known.id)


def _order_failed(turn: Turn) -> bool:
    """Whether an order failed in this turn: the plan did not hold, even if the reading is the same as before."""
    newest = turn.state.reports[-1] if turn.state.reports else None
    return newest is not None and newest.type == "action.failed" and newest.seq > turn.fact.seq


def _is_worse(state: JobState, known: IncidentState, kind: str, fault: Fault) -> bool:
    """Whether the new reading makes the chain start again.

    So it is if the kind or class changed, if the new round was hit as well (the plan did not hold), or if an order to
    prepare the new round failed.
    """
    newest = state.reports[-1] if state.reports else None
    return (
        kind != known.kind
        or fault.cls != known.fault.cls
        or (newest is not None and newest.round > known.round)
        or (newest is not None and newest.type == "action.failed")
    )


# --- moving on -------------------------------------------------------------------------------------------------------


def _advance_actions(turn: Turn) -> bool:
    """Close the orders that every addressed node has answered."""
    done = [ordered.effect for ordered in turn.state.actions.values() if not ordered.waiting]
    for effect in done:
        turn.emit(ActionDone(effect=effect))
    return bool(done)


def _advance_consult(turn: Turn) -> bool:
    """Ask the chain about an incident that waits for an answer."""
    state, known = turn.state, turn.state.incident
    waiting = (IncidentPhase.OPEN, IncidentPhase.DIAGNOSING, IncidentPhase.ESCALATING)
    if known is None or known.phase not in waiting:
        return False
    for answer in consult(state.chain, known, state):
        verdict = answer.verdict
        if isinstance(verdict, Take):
            turn.emit(
                PolicyConsidered(
                    policy=answer.policy,
                    verdict="take",
                    reason=verdict.reason,
                    revision=known.revision,
                    plan=str(verdict.plan),
                    grace_s=verdict.grace_s,
                    deadline_s=verdict.deadline_s,
                    outcome=verdict.outcome,
                    exit_code=verdict.exit_code,
                    wait_s=verdict.wait_s,
                    attempt=verdict.attempt,
                ),
                incident=known.id,
            )
            _begin_plan(turn, known)
            return True
        turn.emit(
            PolicyConsidered(policy=answer.policy, verdict="pass", reason=verdict.reason, revision=known.revision),
            incident=known.id,
        )
    tried = ", ".join(dict.fromkeys(known.tried)) or "nothing could be tried"
    turn.emit(IncidentExhausted(reason=tried), incident=known.id)
    turn.emit(JobFinished(outcome="failed", exit_code=1, reason=f"{known.fault.summary}; tried: {tried}"))
    return True


def _begin_plan(turn: Turn, known: IncidentState) -> None:
    """Supersede what is no longer wanted; stop all workers; prepare the next store at the same time."""
    state = turn.state
    for ordered in list(state.actions.values()):
        if isinstance(ordered.command, StartWorkers):
            turn.emit(ActionSuperseded(effect=ordered.effect, reason=f"incident {known.id}"), incident=known.id)
    _order_stop(turn, known.grace_s, known.id)
    if known.plan == PlanKind.RESTART and known.wait_s == 0:
        _order_store(turn, _next_round(state), known.id)


def _order_stop(turn: Turn, grace_s: float, incident: str | None) -> bool:
    """Have every node that holds workers stop them, unless it was told to already."""
    state = turn.state
    stopping = {
        name
        for ordered in state.actions.values()
        if isinstance(ordered.command, StopWorkers)
        for name in ordered.waiting
    }
    names = tuple(node.node for node in state.alive() if _holds_workers(node) and node.node not in stopping)
    if not names:
        return False
    # Before the first world of a run: workers that a node of the run before never stopped.
    newest = state.world.round if state.world is not None else state.round_first - 1
    command = StopWorkers(round=newest, grace_s=grace_s)  # type: ignore[arg-type]
    _order(turn, command, names, grace_s + STOP_MARGIN_S, incident=incident)
    return True


def _holds_workers(node: NodeState) -> bool:
    return node.phase in ACTIVE or node.phase is NodePhase.FINISHED


def _next_round(state: JobState) -> int:
    return state.world.round + 1 if state.world is not None else state.round_first


def _order_store(turn: Turn, round_: int, incident: str | None = None) -> bool:
    """Have the first node serve the round's store, unless that is ordered already."""
    state = turn.state
    if round_ in state.store_nodes:
        return False
    hosts = state.alive()
    if not hosts:
        return False
    _order(turn, OpenStore(round=round_), (hosts[0].node,), STORE_DEADLINE_S, incident=incident)  # type: ignore[arg-type]
    return True


def _order(
    turn: Turn, command: Command, nodes: tuple[str, ...], deadline_s: float | None, *, incident: str | None = None
) -> None:
    kind = type(command).__struct_config__.tag
    effect = f"{kind}.{turn.state.run}.{turn.state.orders + 1}"
    turn.emit(ActionOrdered(effect=effect, command=command, nodes=nodes, deadline_s=deadline_s), incident=incident)


def _advance_assembling(turn: Turn) -> bool:
    """Plan the first round once the nodes are there: all at once, or the minimum after the join window."""
    state, spec = turn.state, turn.state.spec
    if state.phase is not JobPhase.ASSEMBLING or spec is None:
        return False
    bounds = {"nodes_min": spec.nodes_min, "nodes_max": spec.nodes_max, "node_unit": spec.node_unit}
    count = usable(len(state.places), **bounds)
    if not count or (count < usable(spec.nodes_max, **bounds) and "join" in state.deadlines):
        return False
    turn.emit(RoundPlanned(round=_next_round(state), wait_s=0.0, want=count, window_s=0.0, give_up_s=0.0))
    return True


def _advance_recovering(turn: Turn) -> bool:
    """Once no worker runs any more: plan the next round, or end the job."""
    state, known = turn.state, turn.state.incident
    if state.phase is not JobPhase.RECOVERING or known is None or known.phase is not IncidentPhase.ACTING:
        return False
    if state.count(*ACTIVE) and not _stop_unanswered(state, known):
        return False
    if known.plan == PlanKind.END:
        policy, outcome, code, reason = known.taken, known.outcome, known.exit_code, known.reason
        turn.emit(IncidentResolved(policy=policy, outcome="ended"), incident=known.id)
        turn.emit(JobFinished(outcome=outcome, exit_code=code, reason=reason))
        return True
    assert state.spec is not None
    timing = state.spec.timing
    members = len(state.world.members) if state.world is not None else state.spec.nodes_max
    turn.emit(
        RoundPlanned(
            round=_next_round(state),
            wait_s=known.wait_s,
            want=min(members, state.spec.nodes_max),
            window_s=timing.join_window_s,
            give_up_s=timing.return_window_s,
        ),
        incident=known.id,
    )
    return True


def _stop_unanswered(state: JobState, known: IncidentState) -> bool:
    """A job that ends does not wait for a node that did not even answer the order to stop."""
    stopping = any(isinstance(ordered.command, StopWorkers) for ordered in state.actions.values())
    return known.plan == PlanKind.END and not stopping


def _advance_forming(turn: Turn) -> bool:
    """Form the planned round's world when its nodes, its store and its back-off are done."""
    state, plan, spec = turn.state, turn.state.plan, turn.state.spec
    if state.phase is not JobPhase.FORMING or plan is None or spec is None:
        return False
    incident = state.incident.id if state.incident is not None else None
    if f"backoff/{plan.round}" in state.deadlines:
        return False
    if state.count(*ACTIVE):
        return _order_stop(turn, spec.timing.stop_grace_s, incident)
    if _order_store(turn, plan.round, incident):
        return True
    if len(state.places) < plan.want and f"window/{plan.round}" in state.deadlines:
        return _give_up(turn, plan.round, plan.want)
    members = form_world(
        (Volunteer(node=n.node, incarnation=n.incarnation, ordinal=n.ordinal, slots=n.slots) for n in state.alive()),
        nodes_min=spec.nodes_min,
        nodes_max=spec.nodes_max,
        node_unit=spec.node_unit,
    )
    if len(members) < plan.want and (not members or f"window/{plan.round}" in state.deadlines):
        return _give_up(turn, plan.round, plan.want)
    if plan.round not in state.stores:
        return False
    before = {member.node for member in state.world.members} if state.world is not None else set()
    after = {member.node for member in members}
    for first in range(0, len(members), MEMBERS_PER_EVENT):
        chunk = members[first : first + MEMBERS_PER_EVENT]
        turn.emit(WorldMembers(round=plan.round, members=chunk), incident=incident)
    turn.emit(
        WorldFormed(
            round=plan.round,
            nodes=len(members),
            size=sum(member.slots for member in members),
            digest=digest(members),
            joined=tuple(sorted(after - before))[:NAMES_MAX],
            gone=tuple(sorted(before - after))[:NAMES_MAX],
            store=state.stores[plan.round],
        ),
        incident=incident,
    )
    _order(turn, StartWorkers(round=plan.round), (), spec.timing.start_timeout_s, incident=incident)  # type: ignore[arg-type]
    return True


def _give_up(turn: Turn, round_: int, want: int) -> bool:
    """Escalate past a plan whose nodes did not come back in time."""
    state, known = turn.state, turn.state.incident
    if known is None or f"return/{round_}" in state.deadlines or known.phase is not IncidentPhase.ACTING:
        return False
    reason = f"{len(state.places)} nodes are there, {want} are needed, and no more came in time"
    turn.emit(IncidentEscalated(policy=known.taken, reason=reason), incident=known.id)
    return True


def _members(state: JobState) -> list[NodeState]:
    """The members of the world that are still the incarnation that was taken in."""
    if state.world is None:
        return []
    found = (state.current(member.node, member.incarnation) for member in state.world.members)
    return [node for node in found if node is not None]


def _advance_starting(turn: Turn) -> bool:
    """The round has started when every member's workers run (or are done already)."""
    state = turn.state
    if state.phase is not JobPhase.STARTING or state.world is None:
        return False
    up = (NodePhase.RUNNING, NodePhase.FINISHED)
    if state.count(*up) < len(state.world.members):
        return False
    members = _members(state)
    if len(members) < len(state.world.members) or any(node.phase not in up for node in members):
        return False
    incident = state.incident.id if state.incident is not None else None
    turn.emit(RoundStarted(round=state.world.round), incident=incident)
    return True


def _advance_verifying(turn: Turn) -> bool:
    """Resolve the incident when its outcome is there; escalate when its deadline is over."""
    state, known = turn.state, turn.state.incident
    if known is None or known.phase is not IncidentPhase.VERIFYING or state.world is None:
        return False
    round_ = state.world.round
    told = state.world.stepped + state.count(NodePhase.FINISHED)
    waits = f"settle/{round_}" in state.deadlines and (known.deadline_s <= 0 or f"outcome/{round_}" in state.deadlines)
    if waits and told < len(state.world.members):
        return False
    members = _members(state)
    stepped = [node for node in members if node.stepped is not None]
    finished = [node for node in members if node.phase is NodePhase.FINISHED]
    settled = f"settle/{round_}" not in state.deadlines
    if len(finished) == len(members):
        outcome = "finished"
    elif len(set(map(id, stepped)) | set(map(id, finished))) == len(members) or (settled and stepped):
        outcome = "stepped"
    elif settled and not state.reports_steps:
        outcome = "settled"
    elif known.deadline_s > 0 and f"outcome/{round_}" not in state.deadlines:
        reason = f"no step was completed in {known.deadline_s:g} s"
        turn.emit(IncidentEscalated(policy=known.taken, reason=reason), incident=known.id)
        return True
    else:
        return False
    resolved = IncidentResolved(policy=known.taken, outcome=outcome, steps_lost=_steps_lost(state, known, stepped))
    turn.emit(resolved, incident=known.id)
    return True


def _steps_lost(state: JobState, known: IncidentState, stepped: list[NodeState]) -> int | None:
    """Steps completed before the incident that have to be completed again; None where steps are not absolute."""
    if not (known.absolute and state.step_absolute and known.progress is not None and stepped):
        return None
    first = min(node.stepped for node in stepped if node.stepped is not None)
    return max(0, known.progress - (first - 1))


def _advance_finished(turn: Turn) -> bool:
    """The job has succeeded when every member's workers ended with code 0."""
    state = turn.state
    if state.phase is not JobPhase.RUNNING or state.incident is not None or state.world is None:
        return False
    if state.count(NodePhase.FINISHED) < len(state.world.members):
        return False
    for member in state.world.members:
        node = state.current(member.node, member.incarnation)
        if node is None or node.phase is not NodePhase.FINISHED:
            return False
    turn.emit(JobFinished(outcome="succeeded", exit_code=0, reason="every worker ended with code 0"))
    return True


def _advance_release(turn: Turn) -> bool:
    """Tell every node of an ended job to leave."""
    state = turn.state
    if state.phase not in ENDED:
        return False
    releases = [ordered for ordered in state.actions.values() if isinstance(ordered.command, ReleaseNode)]
    if sum(len(ordered.waiting) for ordered in releases) == len(state.places):
        return False
    told = {name for ordered in releases for name in ordered.waiting}
    names = tuple(node.node for node in state.alive() if node.node not in told)
    if not names:
        return False
    command = ReleaseNode(outcome=state.outcome, exit_code=state.exit_code, reason=state.reason)
    _order(turn, command, names, None)
    return True


_ADVANCE: tuple[tuple[Callable[[Turn], bool], tuple[JobPhase, ...]], ...] = (
    (_advance_consult, tuple(JobPhase)),
    (_advance_recovering, (JobPhase.RECOVERING,)),
    (_advance_assembling, (JobPhase.ASSEMBLING,)),
    (_advance_forming, (JobPhase.FORMING,)),
    (_advance_starting, (JobPhase.STARTING,)),
    (_advance_verifying, tuple(JobPhase)),
    (_advance_finished, (JobPhase.RUNNING,)),
    (_advance_release, ENDED),
    (_advance_actions, tuple(JobPhase)),
)
"""Asked in this order, each in the phases that it can do anything in; after a decision the asking starts again."""

_ADVANCE_IN = {phase: tuple(advance for advance, phases in _ADVANCE if phase in phases) for phase in JobPhase}
