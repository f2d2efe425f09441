"""Health checks: which nodes are checked when, the stages of a check, and the actions after its verdict.

Only nodes without workers are checked: before the first round, new nodes before they take part, and nodes that a plan
suspects. There is one check at a time (``state.health``); ``policies/health.py`` assesses its results.

- A check does not keep a healthy job from training. A node that cannot be checked takes part, and the reason is
  recorded. Every check ends: the agent has a time budget, and the order a deadline.
- A faulty node is quarantined at once, even if other nodes need another check.
- Nodes that train are never checked, and training never waits for a check.
"""

from collections.abc import Iterable

import msgspec

from ftcore.commands import PLATFORM, CheckHealth, ReplaceNodes
from ftcore.engine.dispatch import PLATFORM_ANSWER_S, next_round, order, order_store
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionDone
from ftcore.events.health import BadGroup, BadLink, HealthJudged, UnhealthyNode
from ftcore.events.node import NodeQuarantined
from ftcore.ids import Round
from ftcore.policies.health import FAULTY, TOGETHER_MIN, HealthAssessment, judge, label_groups, next_groups, pair
from ftcore.states.buddies import domain_label
from ftcore.states.faultkey import is_cut
from ftcore.states.health import Group, HealthState, wanted
from ftcore.states.membership import NodeState
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import NodePhase
from ftcore.states.phases import has_ended
from ftcore.wording import plural

ANSWER_S = 30.0
"""Seconds in addition to a check's time budget, for the agent to end it and to answer."""

WITNESSES = 2
"""Unsuspected nodes that are checked as well, in addition to one partner per suspect: without a pair that passes, a
failed pair does not show which of its nodes is faulty."""

CLOCKS_MAX = 8
"""Maximum number of nodes listed with a wrong clock."""

ILL_MAX = 64
"""Maximum number of unhealthy nodes listed, so that the event group has room for a world of ten thousand nodes."""

FAULTY_MAX = 256
"""Maximum number of faulty nodes listed if there are more than ``ILL_MAX``. At least one is left for another check, so
that no world is formed in this turn."""

FINDINGS_MAX = 16
"""Maximum number of links, groups and differences listed."""

APART_NAMES_MAX = 8
"""Maximum number of nodes listed of a group that failed together; its label identifies the others."""

REASON_CHARS_MAX = 120
"""Maximum length of the reason for one node or link."""

DIFFERING_CHARS_MAX = 500
"""Maximum length of the text about one difference."""

NAMED_TWICE_MAX = 1000
"""An order to more nodes than this does not repeat their names, which its groups have already."""


def check_first(turn: Turn) -> bool | None:
    """Check the joined nodes before the first round.

    Returns:
        True: something was decided; False: an answer is pending; None: nothing to check.
    """
    return _check(turn, _free(turn.state, turn.state.membership.unchecked), None)


def check_again(turn: Turn, incident: IncidentState) -> bool | None:
    """Check new and suspected nodes before the next round is planned; returns as ``check_first``."""
    state = turn.state
    unchecked, check = state.membership.unchecked, incident.plan_in_force().terms.check
    suspects = _free(state, [*incident.fault.nodes, *unchecked] if check else unchecked)
    if check == "all" or state.policy.declared.health == "always":
        suspects = [node for node in state.membership.alive() if _is_free(node)]
    round_ = next_round(state)
    due = [
        node
        for node in suspects
        if node.checks and node.checked < round_ and wanted(state.policy.declared.health, node.accelerators)
    ]
    return _check(turn, due, incident.id)


def check_needed(turn: Turn, needed: int) -> bool | None:
    """Check new nodes if the planned round needs ``needed`` more nodes than are checked; returns as ``check_first``."""
    state = turn.state
    due = _free(state, state.membership.unchecked) if needed > 0 or state.health is not None else []
    return _check(turn, due, state.incident.id if state.incident is not None else None)


def advance_spares(turn: Turn) -> bool:
    """Check standby nodes during the training, each by itself, so that they are ready when needed."""
    state = turn.state
    if not state.membership.unchecked or state.health is not None:
        return False
    due = _free(state, state.membership.unchecked)
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
    if round_ not in state.rounds.stores:
        return False
    apart = state.incident is not None and is_cut(state.incident.fault)  # pair the two nodes with each other
    names = [node.node for node in together] if apart else _interleaved(due, together)
    _order(turn, together, pair(names), incident)
    return True


def _is_free(node: NodeState) -> bool:
    return node.phase in (NodePhase.STANDBY, NodePhase.CHECKING)


def _free(state: JobState, names: Iterable[str]) -> list[NodeState]:
    found = (state.membership.nodes.get(name) for name in dict.fromkeys(names))
    free = [node for node in found if node is not None and node.alive and _is_free(node)]
    return sorted(free, key=lambda node: node.ordinal)


def _partners(state: JobState, due: list[NodeState]) -> list[NodeState]:
    """Nodes that are checked as well, so that a failed pair can be attributed to one of its nodes."""
    names = {node.node for node in due}
    free = [node for node in state.membership.alive() if _is_free(node) and node.checks and node.node not in names]
    return free[: len(due) + WITNESSES]


def _interleaved(due: list[NodeState], together: list[NodeState]) -> list[str]:
    """The names in an order that alternates suspects with other nodes, as long as there are both."""
    suspects, others = [node.node for node in due], [node.node for node in together[len(due) :]]
    count = min(len(suspects), len(others))
    mixed = [name for two in zip(suspects, others, strict=False) for name in two]
    return [*mixed, *suspects[count:], *others[count:]]


def _no_store(state: JobState) -> bool:
    """Whether no store could be opened for the next round; then links are not checked."""
    round_ = next_round(state)
    tried = any(r.type in ("store.failed", "action.failed") and r.round == round_ for r in state.evidence.reports)
    return tried and round_ not in state.rounds.store_nodes


def _order(
    turn: Turn,
    nodes: list[NodeState],
    groups: tuple[Group, ...],
    incident: str | None,
    stage: int = 1,
    label: str = "",
) -> None:
    state = turn.state
    round_, within_s = next_round(state), state.policy.declared.check_s
    store = state.rounds.stores.get(round_, "") if groups else ""
    command = CheckHealth(round=Round(round_), stage=stage, groups=groups, store=store, within_s=within_s, label=label)
    named = () if groups and len(nodes) > NAMED_TWICE_MAX else tuple(node.node for node in nodes)
    order(turn, command, named, within_s + ANSWER_S, incident=incident)


def judge_health(turn: Turn) -> None:
    """After all nodes have answered: order the next stage, or record the verdict and act on it."""
    state, check = turn.state, turn.state.health
    if check is None or has_ended(state):
        return
    action = state.orders.open.get(check.effect)
    if action is not None and action.waiting:
        return
    if action is not None:
        turn.emit(ActionDone(effect=action.effect))
    incident = state.incident.id if state.incident is not None else None
    groups, label = _next_groups(state, check)
    if groups:
        nodes = [state.membership.nodes[name] for group in groups for name in group]
        _order(turn, nodes, groups, incident, len(check.stages) + 1, label)
        return
    _judge(turn, check, incident)


def _next_groups(state: JobState, check: HealthState) -> tuple[tuple[Group, ...], str]:
    """The pairs of the next stage; if there are none, once, the nodes of each switch with the label."""
    if check.round not in state.rounds.stores or check.stages[-1].label:
        return (), ""
    groups = next_groups(check.stages)
    whole = tuple(group for group in groups if all(_lives(state, check, name) for name in group))
    if whole:
        return whole, ""
    label = domain_label(state)
    nodes = state.membership.nodes
    living = {name: nodes[name].labels.get(label, "") for name in check.lives if _lives(state, check, name)}
    return label_groups(check.stages, living), label


def _lives(state: JobState, check: HealthState, name: str) -> bool:
    found = state.membership.current(name, check.lives.get(name, ""))
    return found is not None and _is_free(found)


def _judge(turn: Turn, check: HealthState, incident: str | None) -> None:
    state = turn.state
    found = judge(check.stages)
    present = [name for name, life in check.lives.items() if state.membership.current(name, life) is not None]
    meant = set(present)
    ill = [msgspec.structs.replace(each, reason=_short(each.reason)) for each in found.ill if each.node in meant]
    faulty = [each for each in ill if each.verdict == FAULTY]
    others = [each for each in ill if each.verdict != FAULTY]
    named = faulty if len(faulty) <= ILL_MAX else faulty[: min(FAULTY_MAX, len(faulty) - 1)]
    left = {each.node for each in faulty[len(named) :]}
    listed = others[: max(0, ILL_MAX - len(named))]
    judged = HealthJudged(
        round=check.round,
        stages=len(check.stages),
        nodes=len(present),
        ill=(*named, *listed),
        links=tuple(msgspec.structs.replace(each, reason=_short(each.reason)) for each in found.links[:FINDINGS_MAX]),
        differing=_differing(check),
        note=_note(found, len(left), len(others) - len(listed)),
        apart=tuple(
            BadGroup(
                label=_in_common(state, each),
                nodes=each.nodes[:APART_NAMES_MAX],
                reason=_short(each.reason),
                others=max(0, len(each.nodes) - APART_NAMES_MAX),
            )
            for each in found.apart[:FINDINGS_MAX]
        ),
        unmade="" if check.stages[-1].label else _unmade(state, check),
        again=tuple(place for place, name in enumerate(check.lives) if name in left),
    )
    turn.emit(judged, incident=incident)
    for each in named:
        reason = f"failed its health check: {each.reason}"
        turn.emit(NodeQuarantined(node=each.node, reason=reason), incident=incident)
    _replace(turn, named)


def _short(text: str) -> str:
    return text if len(text) <= REASON_CHARS_MAX else f"{text[: REASON_CHARS_MAX - 3]}..."


def _in_common(state: JobState, apart: BadLink) -> str:
    label = domain_label(state)
    return f"{label}={state.membership.nodes[apart.nodes[0]].labels.get(label, '')}"


def _unmade(state: JobState, check: HealthState) -> str:
    """Why there was no all-reduce among the nodes of a switch."""
    label = domain_label(state)
    if not check.stages[-1].groups:
        return "all-reduce: each node was checked by itself"
    nodes = state.membership.nodes
    if not any(nodes[name].labels.get(label) for name in check.lives if name in nodes):
        return f"all-reduce: no node has the label {label} (--node-labels)"
    return f"all-reduce: fewer than {TOGETHER_MIN} healthy nodes have the same label {label}"


def _note(found: HealthAssessment, again: int, others: int) -> str:
    """The remark about the check as a whole, and the number of findings that are not listed."""
    findings = max(0, len(found.links) - FINDINGS_MAX) + max(0, len(found.apart) - FINDINGS_MAX)
    texts = [found.note]
    texts += [f"{plural(again, 'more node is', 'more nodes are')} faulty and will be checked again"] if again else []
    texts += [f"{plural(others, 'more node is', 'more nodes are')} slow or unknown"] if others else []
    texts += [f"{plural(findings, 'more link or group is', 'more links or groups are')} at fault"] if findings else []
    return "; ".join(text for text in texts if text)


def _replace(turn: Turn, faulty: list[UnhealthyNode]) -> None:
    """Order replacements for faulty nodes outside of an incident: new nodes, and those before the first round."""
    state = turn.state
    members = {member.node for member in state.rounds.world.members} if state.rounds.world is not None else set()
    names = tuple(each.node for each in faulty if state.incident is None or each.node not in members)
    if names and state.can("replace"):
        order(turn, ReplaceNodes(nodes=names, isolate=True), (PLATFORM,), PLATFORM_ANSWER_S)


def _differing(check: HealthState) -> tuple[str, ...]:
    """What should be the same on all nodes but differs, the rarest value first."""
    texts = []
    for key, values in check.facts.items():
        if len(values) < 2:
            continue
        shares = sorted(values.items(), key=lambda item: item[1].count)
        parts = [
            f"{value} on {', '.join(share.names)}{_rest(share.count - len(share.names))}" for value, share in shares[:4]
        ]
        texts.append(f"{key}: {'; '.join(parts)}")
    off = [f"{name} is {abs(s):g} s {'ahead' if s > 0 else 'behind'}" for name, s in check.clocks.items()]
    if off:
        texts.append(f"clock: {'; '.join(off[:CLOCKS_MAX])}{_rest(len(off) - CLOCKS_MAX)}")
    more = [f"{len(texts) - FINDINGS_MAX} more"] if len(texts) > FINDINGS_MAX else []
    return (*(text[:DIFFERING_CHARS_MAX] for text in texts[:FINDINGS_MAX]), *more)


def _rest(count: int) -> str:
    return f" and {count} more" if count > 0 else ""
