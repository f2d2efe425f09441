"""Health checks: who is checked when, the stages of a check, and what is done about its verdict.

A check is made of nodes that run nothing: before the first round, of newcomers before they take part, of those that a
plan distrusts. One is under way at a time (``state.health``); what it means is judged in ``policies/health.py``.

House rules:
- a check never keeps a healthy job from training: what cannot be checked takes part, with the reason on record; every
  check has an end, since its agent keeps to a budget and its order to a deadline;
- a node that is found faulty is quarantined at once, whoever else has still to be decided about;
- nodes that train are never checked, and nothing that trains waits for a check.
"""

from collections.abc import Iterable

import attrs

from ftcore.commands import PLATFORM, CheckHealth, ReplaceNodes
from ftcore.engine.dispatch import PLATFORM_ANSWER_S, next_round, order, order_store
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionDone
from ftcore.events.health import BadGroup, BadLink, HealthJudged, Ill
from ftcore.events.node import NodeQuarantined
from ftcore.ids import Round
from ftcore.policies.health import FAULTY, TOGETHER_MIN, Judgement, judge, next_groups, pair, together
from ftcore.states.faultkey import is_cut
from ftcore.states.health import Group, HealthState, wanted
from ftcore.states.model import IncidentState, JobState, NodeState
from ftcore.states.node import NodePhase
from ftcore.states.phases import has_ended
from ftcore.wording import plural

ANSWER_S = 30.0
"""What an agent gets beyond the budget of a check, to end it and to tell."""

WITNESSES = 2
"""Nodes that are checked along although nothing speaks against them, beside one partner for each that is doubted: a
pair that passes is needed to tell whose fault it is that another one fails."""

CLOCKS_MAX = 8
"""Nodes named of those whose clocks are off."""

ILL_MAX = 64
"""Nodes named as not plainly healthy: a world of ten thousand nodes fits the group behind them."""

FAULTY_MAX = 256
"""Faulty nodes named where there are more than that; at least one is left to be checked again, so no world follows."""

FINDINGS_MAX = 16
"""Links, groups and differences named."""

APART_NAMES_MAX = 8
"""Nodes named of a group that fails all together; its label tells the others."""

REASON_CHARS_MAX = 120
"""Of what is said of one node or link."""

DIFFERING_CHARS_MAX = 500
"""Of what is said of one difference."""

NAMED_TWICE_MAX = 1000
"""An order to more nodes than that does not name them beside the groups that hold them all."""

SWITCH = "switch"
"""The label whose nodes are tried all at once, if ranks are not laid out by another one (``--order-by``)."""


def check_first(turn: Turn) -> bool | None:
    """Check the nodes that are there before the first round.

    Returns:
        True: something was decided; False: an answer is awaited; None: there is nothing to check.
    """
    return _check(turn, _free(turn.state, turn.state.unchecked), None)


def check_again(turn: Turn, known: IncidentState) -> bool | None:
    """Check newcomers, and whom the plan distrusts, before the next round is planned; returns as ``check_first``."""
    state = turn.state
    doubted = _free(state, [*known.fault.nodes, *state.unchecked] if known.terms.check else state.unchecked)
    if known.terms.check == "all" or state.declared.health == "always":
        doubted = [node for node in state.alive() if _is_free(node)]
    round_ = next_round(state)
    due = [
        node
        for node in doubted
        if node.checks and node.checked < round_ and wanted(state.declared.health, node.accelerators)
    ]
    return _check(turn, due, known.id)


def check_needed(turn: Turn, needed: int) -> bool | None:
    """Check newcomers if the planned round needs them: so many nodes beyond those that are checked.

    Returns as ``check_first``.
    """
    state = turn.state
    due = _free(state, state.unchecked) if needed > 0 or state.health is not None else []
    return _check(turn, due, state.incident.id if state.incident is not None else None)


def advance_spares(turn: Turn) -> bool:
    """Check nodes that stand by while others train, each by itself: they are ready when they are needed."""
    state = turn.state
    if not state.unchecked or state.health is not None:
        return False
    due = _free(state, state.unchecked)
    if due:
        _order(turn, due, (), None)
    return bool(due)


def _check(turn: Turn, due: list[NodeState], incident: str | None) -> bool | None:
    state = turn.state
    if state.health is not None:
        return False
    if not due:
        return None
    together = [*due, *_partners(state, due)]
    if len(together) == 1 or _no_store(state):
        _order(turn, due, (), incident)
        return True
    round_ = next_round(state)
    if order_store(turn, round_, incident):
        return True
    if round_ not in state.stores:
        return False
    apart = state.incident is not None and is_cut(state.incident.fault)  # whether those pass together is the question
    names = [node.node for node in together] if apart else _interleaved(due, together)
    _order(turn, together, pair(names), incident)
    return True


def _is_free(node: NodeState) -> bool:
    return node.phase in (NodePhase.STANDBY, NodePhase.CHECKING)


def _free(state: JobState, names: Iterable[str]) -> list[NodeState]:
    found = (state.nodes.get(name) for name in dict.fromkeys(names))
    free = [node for node in found if node is not None and node.alive and _is_free(node)]
    return sorted(free, key=lambda node: node.ordinal)


def _partners(state: JobState, due: list[NodeState]) -> list[NodeState]:
    """Nodes that are checked along, so that it can be told whose fault a failure is."""
    names = {node.node for node in due}
    free = [node for node in state.alive() if _is_free(node) and node.checks and node.node not in names]
    return free[: len(due) + WITNESSES]


def _interleaved(due: list[NodeState], together: list[NodeState]) -> list[str]:
    """An order in which neighbours are one that is doubted and one that is not, as far as there are both."""
    doubted, others = [node.node for node in due], [node.node for node in together[len(due) :]]
    count = min(len(doubted), len(others))
    mixed = [name for two in zip(doubted, others, strict=False) for name in two]
    return [*mixed, *doubted[count:], *others[count:]]


def _no_store(state: JobState) -> bool:
    """No store could be opened for the round to come: links are left unchecked."""
    round_ = next_round(state)
    tried = any(r.type in ("store.failed", "action.failed") and r.round == round_ for r in state.reports)
    return tried and round_ not in state.store_nodes


def _order(
    turn: Turn,
    nodes: list[NodeState],
    groups: tuple[Group, ...],
    incident: str | None,
    stage: int = 1,
    label: str = "",
) -> None:
    state = turn.state
    round_, within_s = next_round(state), state.declared.check_s
    store = state.stores.get(round_, "") if groups else ""
    command = CheckHealth(round=Round(round_), stage=stage, groups=groups, store=store, within_s=within_s, label=label)
    named = () if groups and len(nodes) > NAMED_TWICE_MAX else tuple(node.node for node in nodes)
    order(turn, command, named, within_s + ANSWER_S, incident=incident)


def judge_health(turn: Turn) -> None:
    """When everybody has answered: the next stage, or the verdict and what follows from it."""
    state, known = turn.state, turn.state.health
    if known is None or has_ended(state):
        return
    action = state.actions.get(known.effect)
    if action is not None and action.waiting:
        return
    if action is not None:
        turn.emit(ActionDone(effect=action.effect))
    incident = state.incident.id if state.incident is not None else None
    groups, label = _next_groups(state, known)
    if groups:
        nodes = [state.nodes[name] for group in groups for name in group]
        _order(turn, nodes, groups, incident, len(known.stages) + 1, label)
        return
    _judge(turn, known, incident)


def _next_groups(state: JobState, known: HealthState) -> tuple[tuple[Group, ...], str]:
    """Pairs that would tell more; when there are none, once, the nodes of each switch and the label's name."""
    if known.round not in state.stores or known.stages[-1].label:
        return (), ""
    groups = next_groups(known.stages)
    whole = tuple(group for group in groups if all(_lives(state, known, name) for name in group))
    if whole:
        return whole, ""
    label = _label(state)
    living = {name: state.nodes[name].labels.get(label, "") for name in known.lives if _lives(state, known, name)}
    return together(known.stages, living), label


def _label(state: JobState) -> str:
    return (state.spec.order_by if state.spec is not None else "") or SWITCH


def _lives(state: JobState, known: HealthState, name: str) -> bool:
    found = state.current(name, known.lives.get(name, ""))
    return found is not None and _is_free(found)


def _judge(turn: Turn, known: HealthState, incident: str | None) -> None:
    state = turn.state
    found = judge(known.stages)
    present = [name for name, life in known.lives.items() if state.current(name, life) is not None]
    meant = set(present)
    ill = [attrs.evolve(each, reason=_short(each.reason)) for each in found.ill if each.node in meant]
    faulty = [each for each in ill if each.verdict == FAULTY]
    others = [each for each in ill if each.verdict != FAULTY]
    named = faulty if len(faulty) <= ILL_MAX else faulty[: min(FAULTY_MAX, len(faulty) - 1)]
    left = {each.node for each in faulty[len(named) :]}
    told = others[: max(0, ILL_MAX - len(named))]
    judged = HealthJudged(
        round=known.round,
        stages=len(known.stages),
        nodes=len(present),
        ill=(*named, *told),
        links=tuple(attrs.evolve(each, reason=_short(each.reason)) for each in found.links[:FINDINGS_MAX]),
        differing=_differing(known),
        note=_note(found, len(left), len(others) - len(told)),
        apart=tuple(
            BadGroup(
                label=_in_common(state, each),
                nodes=each.nodes[:APART_NAMES_MAX],
                reason=_short(each.reason),
                others=max(0, len(each.nodes) - APART_NAMES_MAX),
            )
            for each in found.apart[:FINDINGS_MAX]
        ),
        unmade="" if known.stages[-1].label else _unmade(state, known),
        again=tuple(place for place, name in enumerate(known.lives) if name in left),
    )
    turn.emit(judged, incident=incident)
    for each in named:
        reason = f"failed its health check: {each.reason}"
        turn.emit(NodeQuarantined(node=each.node, reason=reason), incident=incident)
    _replace(turn, named)


def _short(text: str) -> str:
    return text if len(text) <= REASON_CHARS_MAX else f"{text[: REASON_CHARS_MAX - 3]}..."


def _in_common(state: JobState, apart: BadLink) -> str:
    label = _label(state)
    return f"{label}={state.nodes[apart.nodes[0]].labels.get(label, '')}"


def _unmade(state: JobState, known: HealthState) -> str:
    """Why no data was summed up among the nodes of a switch."""
    label = _label(state)
    if not known.stages[-1].groups:
        return "all-reduce: each node was checked by itself"
    if not any(state.nodes[name].labels.get(label) for name in known.lives if name in state.nodes):
        return f"all-reduce: no node has the label {label} (--node-labels)"
    return f"all-reduce: no {TOGETHER_MIN} nodes that are good have the same label {label}"


def _note(found: Judgement, again: int, others: int) -> str:
    """What the check has to say of itself, and how much is not named."""
    findings = max(0, len(found.links) - FINDINGS_MAX) + max(0, len(found.apart) - FINDINGS_MAX)
    texts = [found.note]
    texts += [f"{plural(again, 'more node is', 'more nodes are')} faulty and checked again"] if again else []
    texts += [f"{plural(others, 'more node is', 'more nodes are')} slow or unknown"] if others else []
    texts += [f"{plural(findings, 'more link or group is', 'more links or groups are')} at fault"] if findings else []
    return "; ".join(text for text in texts if text)


def _replace(turn: Turn, faulty: list[Ill]) -> None:
    """Have the platform launch others for nodes that no incident is about: newcomers, and those of the first round."""
    state = turn.state
    members = {member.node for member in state.world.members} if state.world is not None else set()
    names = tuple(each.node for each in faulty if state.incident is None or each.node not in members)
    if names and state.can("replace"):
        order(turn, ReplaceNodes(nodes=names, isolate=True), (PLATFORM,), PLATFORM_ANSWER_S)


def _differing(known: HealthState) -> tuple[str, ...]:
    """What should be equal on all nodes and is not, the rarest value first."""
    told = []
    for key, values in known.facts.items():
        if len(values) < 2:
            continue
        shares = sorted(values.items(), key=lambda item: item[1].count)
        parts = [
            f"{value} on {', '.join(share.names)}{_rest(share.count - len(share.names))}" for value, share in shares[:4]
        ]
        told.append(f"{key}: {'; '.join(parts)}")
    off = [f"{name} is {abs(s):g} s {'ahead' if s > 0 else 'behind'}" for name, s in known.clocks.items()]
    if off:
        told.append(f"clock: {'; '.join(off[:CLOCKS_MAX])}{_rest(len(off) - CLOCKS_MAX)}")
    more = [f"{len(told) - FINDINGS_MAX} more"] if len(told) > FINDINGS_MAX else []
    return (*(text[:DIFFERING_CHARS_MAX] for text in told[:FINDINGS_MAX]), *more)


def _rest(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
