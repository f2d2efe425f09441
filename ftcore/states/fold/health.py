"""Handlers of health checks: orders, findings and judgement."""

from collections.abc import Mapping

from ftcore.commands import CheckHealth
from ftcore.events import health, node
from ftcore.events.envelope import Event
from ftcore.events.incident import Fault
from ftcore.states.faultkey import is_cut
from ftcore.states.fold.base import Changes, answering, on, report, step_job, step_node
from ftcore.states.health import NAMES_KEPT, HealthState, Share, Stage, StageFinding, clock_off_s
from ftcore.states.model import ActionState, JobState


def ordered(state: JobState, action: ActionState, changes: Changes) -> None:
    """Record the order of a check, or of the next stage of the check in progress."""
    command = action.command
    assert isinstance(command, CheckHealth)
    step_job(state, "action.ordered/check_health", changes)
    for name in action.waiting:
        step_node(state, state.membership.nodes[name], "action.ordered/check_health", changes)
    if state.health is None or command.stage == 1:
        state.health = HealthState(round=command.round, effect=action.effect, lives={})
    state.health.effect = action.effect
    state.health.lives.update(action.waiting)
    state.health.stages.append(Stage(groups=command.groups, label=command.label))


def unanswered(state: JobState, action: ActionState, reason: str) -> None:
    """Record a failed check for each node that did not answer in time."""
    for name in action.waiting:
        read(state, action, name, StageFinding(verdict="failed", detail=f"its agent did not answer: {reason}"))


def dropped(state: JobState, action: ActionState) -> None:
    """Discard the check of a superseded order."""
    if state.health is not None and state.health.effect == action.effect:
        state.health = None


def read(state: JobState, action: ActionState, name: str, reading: StageFinding) -> None:
    """Record the finding of a node, if it belongs to the check in progress."""
    if state.health is not None and state.health.effect == action.effect:
        state.health.stages[-1].readings[name] = reading


@on(node.HealthChecked)
def _health_checked(state: JobState, event: Event, data: node.HealthChecked, changes: Changes) -> None:
    current = state.membership.current(data.node, data.incarnation)
    if current is not None:
        step_node(state, current, "health.checked", changes)
    answer = answering(state, data)
    if answer is None:
        return
    found, action = answer
    del action.waiting[found.node]
    reading = StageFinding(
        verdict=data.verdict,
        exchange=data.exchange,
        detail=data.detail,
        device_s=data.device_s,
        exchange_s=data.exchange_s,
        link_s=data.link_s,
    )
    read(state, action, found.node, reading)
    if state.health is not None and state.health.effect == action.effect:
        _take_facts(state.health, found.node, data.facts)
        off_s = 0.0
        if event.at is not None:
            off_s = clock_off_s(event.at.wall, action.ordered, event.time, data.took_s)
        if off_s:
            state.health.clocks[found.node] = round(off_s, 1)


def _take_facts(known: HealthState, name: str, facts: Mapping[str, str]) -> None:
    for key, value in facts.items():
        share = known.facts.setdefault(key, {}).setdefault(value, Share())
        share.count += 1
        if len(share.names) < NAMES_KEPT:
            share.names.append(name)


@on(health.HealthJudged)
def _health_judged(state: JobState, event: Event, data: health.HealthJudged, changes: Changes) -> None:
    membership = state.membership
    step_job(state, "health.judged/again" if state.incident is not None else "health.judged/first", changes)
    known, state.health = state.health, None
    if known is None:
        return
    ill = {each.node: each for each in data.ill}
    again = set(data.again)
    for place, (name, life) in enumerate(known.lives.items()):
        found = membership.current(name, life)
        if found is None:
            continue
        if place in again:
            membership.unchecked[name] = life
            continue
        found.health = ill[name].verdict if name in ill else "healthy"
        found.checked = data.round
        membership.unchecked.pop(name, None)
        member = state.rounds.world is not None and state.rounds.world.has(name, life)
        if found.health == "faulty" and member and state.incident is not None:
            report(state, event, name, message=ill[name].reason, source="health", kind="faulty")
    if state.incident is not None and is_cut(state.incident.fault) and all(e.verdict != "faulty" for e in data.ill):
        _report_cut(state, event, data, state.incident.fault)


def _report_cut(state: JobState, event: Event, data: health.HealthJudged, fault: Fault) -> None:
    """Report nodes that cannot reach each other, if the check found no defect of a single node."""
    unknown = [each.node for each in data.ill if each.verdict == "unknown"]
    failed = [node for link in data.links if set(link.nodes) <= set(fault.nodes) for node in link.nodes]
    apart = [name for name in fault.nodes if name in failed] or [name for name in fault.nodes if name in unknown]
    if len(apart) < 2:
        return
    why = "each reaches other nodes: the link is at fault" if failed else "the check cannot tell which one is at fault"
    message = f"{fault.summary.partition(':')[0]}: {why}; {apart[0]} is to leave"
    for name in apart:
        report(state, event, name, message=message, source="health", kind=fault.detail)
