"""Noticing: does this fact open an incident, or change the reading of the open one?

Four kinds, the gravest first. A *fault* interrupts the training. A *request* is an operator's wish, a *warning* is a
trouble that the training survives by itself, an *opportunity* is a chance to train on more nodes; these three are
dropped if no policy takes them, and give way to a fault.
"""

from functools import lru_cache
from itertools import islice

import msgspec

from ftcore.engine.dispatch import order_release
from ftcore.engine.ranks import Ranks
from ftcore.engine.turn import Turn
from ftcore.errors import UsageError
from ftcore.events.incident import Fault, IncidentOpened, IncidentRediagnosed, IncidentResolved
from ftcore.events.node import NodeQuarantined
from ftcore.events.worker import ADVISORY
from ftcore.faults.correlate import correlate
from ftcore.faults.extra import extra_rules
from ftcore.faults.rule import Rule
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import PlanKind
from ftcore.policies.traits import Trait, having
from ftcore.states.model import IncidentState, JobState, Report, Request
from ftcore.states.node import NodePhase
from ftcore.states.phases import has_ended, is_deferred, is_running, is_up, opens_faults
from ftcore.states.revisions import READY_FIRST, follows
from ftcore.states.world import usable
from ftcore.wording import plural


def notice(turn: Turn, since: int) -> None:
    """Open or amend an incident, if a report of this run from that seq on, or an operator, gives a reason to."""
    state = turn.state
    if has_ended(state):
        return
    if state.stop is not None:
        _notice_stop(turn, state.stop, since)
    elif any(r.seq >= since and _is_of_run(state, r) for r in state.reports):
        _notice_reports(turn)
    elif is_deferred(state.incident):
        _notice_stricter(turn)
    elif state.incident is None and is_up(state):
        notice_calm(turn)


def _notice_stop(turn: Turn, stop: Request, since: int) -> None:
    """Nothing counts any more but the wish; what hits a new round on the way to the end makes the chain start again."""
    state, known = turn.state, turn.state.incident
    if known is None or known.fault.root != stop.seq:
        _open_or_amend(turn, "request", _wish(stop))
    elif known.plan == PlanKind.RESTART and any(r.seq >= since and r.round > known.round for r in state.reports):
        turn.emit(
            IncidentRediagnosed(kind="request", fault=known.fault, revision=known.revision + 1), incident=known.id
        )


def _notice_stricter(turn: Turn) -> None:
    """A node that is about to be drained is to be kept out as well: the chain is asked again about that wish."""
    known, wish = turn.state.incident, turn.state.request
    assert known is not None
    if wish is None or wish.command != "evict" or wish.seq == known.fault.root:
        return
    if known.kind == "request" and wish.node in known.terms.exclude:
        _open_or_amend(turn, "request", _wish(wish))


def notice_calm(turn: Turn) -> None:
    """Take up a wish or an opportunity, when nothing else is going on."""
    state = turn.state
    if state.request is not None:
        _take_up(turn, state.request)
    elif state.offered == 0 and is_running(state) and (count := _spare(state)):
        _open_or_amend(turn, "opportunity", _offer(turn, count))


def _take_up(turn: Turn, request: Request) -> None:
    """Open the wish's incident; one to let go of a node that only stands by, or that is gone, needs nobody's plan."""
    _open_or_amend(turn, "request", _wish(request))
    node, known = turn.state.nodes.get(request.node), turn.state.incident
    if request.command not in ("drain", "evict") or node is None:
        return
    gone = not node.alive and follows(turn.state, READY_FIRST)
    if node.phase is not NodePhase.STANDBY and not gone:
        return
    assert known is not None
    if request.command == "evict":
        turn.emit(NodeQuarantined(node=node.node, reason=known.fault.summary), incident=known.id)
    if not gone:
        order_release(turn, (node.node,), known.fault.summary, known.id)
    turn.emit(IncidentResolved(policy="", outcome="released"), incident=known.id)


def _notice_reports(turn: Turn) -> None:
    state, known = turn.state, turn.state.incident
    reports = [report for report in state.reports if _is_of_run(state, report)]
    kind = "warning" if all(report.kind in ADVISORY for report in reports) else "fault"
    if known is None:
        if opens_faults(state) and (kind == "fault" or is_up(state)):
            _open_or_amend(turn, kind, _read(state))
        return
    trains = known.kind == "warning" or is_deferred(known)
    if known.plan != PlanKind.END and (kind == "fault" or trains) and not _is_echo(known, reports):
        _open_or_amend(turn, kind, _read(state))


def _read(state: JobState) -> Fault:
    return correlate(state.reports, state.hits, job_rules(state), Ranks(state))


def job_rules(state: JobState) -> tuple[Rule, ...]:
    """The job's own rules, which reports are read with before the built-in ones."""
    return _rules(msgspec.json.encode(state.rules))


@lru_cache(maxsize=4)
def _rules(recorded: bytes) -> tuple[Rule, ...]:
    """The job's own rules; none, if a newer ftcore recorded what this one cannot read."""
    try:
        return extra_rules(msgspec.json.decode(recorded), "policy.loaded: rules")
    except UsageError:
        return ()


def _is_echo(known: IncidentState, reports: list[Report]) -> bool:
    """Whether all that was reported since a wish's new round began is how the old round's workers ended."""
    if known.kind == "fault" or known.plan != PlanKind.RESTART or is_deferred(known):
        return False
    new = [report for report in reports if report.seq > known.taken_at]
    return all(report.type == "worker.failed" and report.round <= known.round for report in new)


def _is_of_run(state: JobState, report: Report) -> bool:
    """Whether the report is of a round of this run, or of an order that this run gave."""
    return report.round >= state.round_first or report.type == "action.failed"


def _wish(request: Request) -> Fault:
    what = {"stop": "the end of the run", "checkpoint": "a checkpoint"}.get(request.command)
    what = what or f"`{request.command}{f' {request.node}' if request.node else ''}`"
    return Fault(
        cls=str(FaultClass.REQUEST),
        detail=request.command,
        nodes=(request.node,) if request.node else (),
        ranks=(),
        root=request.seq,
        summary=f"{request.who} asked for {what}",
    )


def _spare(state: JobState) -> int:
    """The size that the world could grow to with the nodes that stand by; 0 if it could not."""
    spec, world = state.spec, state.world
    if spec is None or world is None or not state.count(NodePhase.STANDBY):
        return 0
    if not having(state.chain, Trait.GROWS):
        return 0
    count = usable(state.ready(), spec)
    return count if count > len(world.members) else 0


def _offer(turn: Turn, count: int) -> Fault:
    state = turn.state
    assert state.world is not None
    count_standby = state.count(NodePhase.STANDBY)
    # Who joined last stands last, so a newcomer is found at once, not behind thousands that train.
    standing_by = (node for node in reversed(state.nodes.values()) if node.phase is NodePhase.STANDBY)
    named = sorted(islice(standing_by, min(count_standby, 16)), key=lambda node: node.ordinal)
    stands_by = plural(count_standby, "node stands by", "nodes stand by")
    return Fault(
        cls=str(FaultClass.REQUEST),
        detail="grow",
        nodes=tuple(node.node for node in named),
        ranks=(),
        root=turn.fact.seq,
        summary=f"{stands_by}: {count} instead of {len(state.world.members)} could train",
    )


def _open_or_amend(turn: Turn, kind: str, fault: Fault) -> None:
    state = turn.state
    known = state.incident
    if known is None:
        turn.emit(IncidentOpened(kind=kind, fault=fault), incident=f"i{state.incidents + 1}")
    elif fault != known.fault or kind != known.kind or _order_failed(turn):
        revision = known.revision + (1 if _is_worse(turn, known, kind, fault) else 0)
        turn.emit(IncidentRediagnosed(kind=kind, fault=fault, revision=revision), incident=known.id)


def _order_failed(turn: Turn) -> bool:
    """Whether an order failed in this turn: the plan did not hold, even if the reading is the same as before."""
    newest = turn.state.reports[-1] if turn.state.reports else None
    return newest is not None and newest.type == "action.failed" and newest.seq > turn.fact.seq


def _is_worse(turn: Turn, known: IncidentState, kind: str, fault: Fault) -> bool:
    """Whether the new reading makes the chain start again.

    So it is if the kind, the class or the wish changed, if the new round was hit as well (the plan did not hold), if an
    order to prepare the new round or a health check failed, if a process was lost while a plan in place relied on it,
    or a node while a plan counted on it.
    """
    newest = turn.state.reports[-1] if turn.state.reports else None
    if kind != known.kind or fault.cls != known.fault.cls:
        return True
    if kind == "request":
        return fault.root != known.fault.root
    if newest is None:
        return False
    if newest.round > known.round or newest.type in ("action.failed", "health.judged"):
        return True
    if newest.seq <= known.taken_at or newest.type == "fault.observed":
        return False
    if known.plan == PlanKind.IN_PLACE:
        return known.terms.then != "continue"
    terms = known.terms
    counts = bool(terms.replace or terms.want or terms.patience_s is not None or terms.survivors == "park")
    return counts and newest.rank < 0 and newest.node not in known.terms.exclude
