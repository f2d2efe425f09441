"""Health checks: pair the nodes, pair the suspects again, and find the nodes at fault. Pure.

Every node checks its own devices, then the nodes of each group exchange data. A node that fails by itself is known at
once. A failed group only shows that one of its members, or the link between them, is bad. So each suspect of a failed
group is paired again with a cleared node: if 5-6 fails in {1,2} {3,4} {5,6}, the next stage is {1,2} {3,5} {4,6}; if
4-6 fails as well, 6 is faulty and 5 is cleared. A failed group of three is split into its pairs.

- *Cleared*: passed an exchange with any node.
- *Faulty*: failed every exchange, in at least two stages, one of them with a cleared node.
- *Bad link*: both ends failed together and passed with others. No node is rejected.
- *Slow*: clearly slower than the others in two stages, by itself or in its group.
- *Apart*: the nodes under one switch all pass in pairs but fail in a collective of all of them. The switch or its
  configuration is reported; no node is rejected.
- *Unknown*: failed, but there was no cleared node to compare with. The node is not rejected.

Stages continue while another one gives new evidence, up to ``STAGES_MAX``. A suspect that failed with one cleared node
is tried with another one first, because the link between the two may be bad. If nearly all nodes failed, the rest are
paired until two good ones meet.

If all nodes fail, the check itself is more likely at fault. A node is rejected only if others pass, or if it computed
wrong values by itself.

Source of pairing in two rounds: the node check in the documentation of DLRover.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Final, TypeVar

import attrs

from ftcore.events.health import BadLink, UnhealthyNode
from ftcore.faults.detectors.robust import median
from ftcore.states.health import Group, Stage, StageFinding

STAGES_MAX: Final = 6
"""Maximum number of stages. Two are enough if few nodes are bad."""

TOGETHER_MIN: Final = 3
"""Minimum nodes under one label for a collective; two nodes were already tested as a pair."""

TOGETHER_MAX: Final = 64
"""Maximum nodes in one collective, more than one switch connects; larger groups under a label are split."""

SLOW_RATIO: Final = 1.5
"""A node is slow if it takes this many times the median."""

SLOW_LEAST_S: Final = 0.05
"""Smaller differences in seconds are noise from start-up and scheduling, whatever the ratio."""

LINK_RATIO: Final = 2.0
"""As ``SLOW_RATIO``, for TCP between nodes, which varies more because the network is shared."""

LINK_LEAST_S: Final = 0.05
"""As ``SLOW_LEAST_S``, for a gigabyte over TCP: smaller differences come from the processors, not from the network."""

SLOW_NODES_MIN: Final = 4
"""With fewer nodes, a median does not show which ones are slow."""

FAULTY: Final = "faulty"
FAILED: Final = "failed"
SLOW: Final = "slow"
UNKNOWN: Final = "unknown"
UNAVAILABLE: Final = "unavailable"
PASSED: Final = "passed"

_T = TypeVar("_T")


@attrs.frozen(kw_only=True)
class HealthAssessment:
    """The result of all stages.

    Args:
        ill: nodes that are not healthy, in the order of the readings.
        links: pairs of good nodes that could not exchange data.
        apart: groups under one label that failed although each of their nodes is good.
        note: a remark about the check as a whole; empty if there is none.
    """

    ill: tuple[UnhealthyNode, ...] = ()
    links: tuple[BadLink, ...] = ()
    apart: tuple[BadLink, ...] = ()
    note: str = ""


def pair(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Pairs of neighbours; with an odd number the last group has three nodes. A single node gets no group."""
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if groups and len(nodes) % 2:
        groups[-1] = (*groups[-1], nodes[-1])
    return tuple(groups)


def next_groups(stages: Sequence[Stage]) -> tuple[Group, ...]:
    """The groups of the next stage; empty if it would give no new evidence.

    Args:
        stages: the stages so far, in order; at least one.
    """
    if len(stages) >= STAGES_MAX:
        return ()
    results = _StageResults(stages)
    slow = _slow_in_first(results) if len(stages) == 1 else []
    suspects = list(dict.fromkeys([*results.suspects(), *slow]))
    if not suspects:
        return ()
    suspected = set(suspects)
    fit = [node for node in results.cleared if node not in suspected]
    groups = _with_cleared(suspects, fit, results)
    placed = {node for group in groups for node in group}
    left = [node for node in suspects if node not in placed and node not in results.cleared]
    groups += _among_themselves(left, results)
    placed = {node for group in groups for node in group}
    if not placed:
        return ()
    last = stages[-1].groups
    again = (group for group in last if all(node in results.cleared and node not in placed for node in group))
    return (*again, *groups)  # the other groups repeat: the load stays the same, and times are measured again


def label_groups(stages: Sequence[Stage], labels: Mapping[str, str]) -> tuple[Group, ...]:
    """Groups of good nodes with the same label, to test a collective among them; empty if too few share a label.

    Args:
        stages: the stages in pairs; at least one.
        labels: value of the label by node; nodes without one are ignored.
    """
    under: dict[str, list[str]] = {}
    for node in _StageResults(stages).cleared:
        if labels.get(node):
            under.setdefault(labels[node], []).append(node)
    groups = [group for nodes in under.values() if len(nodes) >= TOGETHER_MIN for group in _parts(nodes)]
    tested = {frozenset(group) for stage in stages for group in stage.groups}
    return tuple(group for group in groups if frozenset(group) not in tested)


def _parts(nodes: Sequence[str]) -> list[Group]:
    """The fewest parts of at most ``TOGETHER_MAX`` nodes, of equal size."""
    count = -(-len(nodes) // TOGETHER_MAX)
    return [tuple(nodes[i * len(nodes) // count : (i + 1) * len(nodes) // count]) for i in range(count)]


def judge(stages: Sequence[Stage]) -> HealthAssessment:
    """The verdict on every node that took part.

    Args:
        stages: the stages, in order; at least one.
    """
    results = _StageResults(stages)
    ill: dict[str, UnhealthyNode] = {}
    note = _note(results)
    for node in results.nodes:
        if results.wrong.get(node) and not results.all_wrong:
            ill[node] = UnhealthyNode(node=node, verdict=FAULTY, reason=results.wrong[node])
        elif node in results.failed and not results.all_failed:
            ill[node] = UnhealthyNode(node=node, verdict=FAULTY, reason=results.failed[node])
        elif node in results.wrong or node in results.failed:
            ill[node] = UnhealthyNode(
                node=node, verdict=UNKNOWN, reason=results.wrong.get(node) or results.failed[node]
            )
        elif node in results.failures and node not in results.cleared:
            ill[node] = _judge_exchanges(node, results)
        elif node in results.unavailable:
            ill[node] = UnhealthyNode(node=node, verdict=UNKNOWN, reason=f"not checked: {results.unavailable[node]}")
    for node, reason in _slow_in_two(results).items():
        ill.setdefault(node, UnhealthyNode(node=node, verdict=SLOW, reason=reason))
    links: dict[frozenset[str], BadLink] = {}
    for group in results.failed_groups:
        if all(node in results.cleared for node in group):
            nodes = results.pair_of(group)
            links.setdefault(frozenset(nodes), BadLink(nodes=nodes, reason=results.detail_of(group)))
    apart = tuple(
        BadLink(nodes=group, reason=results.detail_of(group))
        for group in results.apart
        if all(node in results.cleared for node in group)
    )
    return HealthAssessment(ill=tuple(ill.values()), links=tuple(links.values()), apart=apart, note=note)


class _StageResults:
    """The readings of all stages, indexed once so that no query scans all nodes.

    ``cleared``: nodes that passed an exchange and did not fail by themselves. ``failures``: the failed groups of each
    node. ``partners``: by node, the nodes that it was paired with.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self.nodes = tuple(dict.fromkeys(node for stage in stages for node in stage.readings))
        self.wrong: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.unavailable: dict[str, str] = {}
        self.failures: dict[str, list[Group]] = {}
        self.partners: dict[str, set[str]] = {}
        self.failed_groups: list[Group] = []
        self.apart: list[Group] = []
        self._passed: set[frozenset[str]] = set()
        self._stages_of: dict[Group, list[Stage]] = {}
        passed: dict[str, None] = {}
        for stage in stages:
            for group in stage.groups:
                self._stages_of.setdefault(group, []).append(stage)
            for node, reading in stage.readings.items():
                self._add_own_result(node, reading)
            if stage.label:
                self.apart += [group for group in stage.groups if _failed_complete(group, stage)]
                continue
            for group in stage.groups:
                for node in group if len(group) == 2 else ():  # a group of three shows little about each of its pairs
                    self.partners.setdefault(node, set()).update(group)
                outcome = _outcome(group, stage)
                if outcome == PASSED:
                    passed |= dict.fromkeys(group)
                    self._passed |= {frozenset(two) for two in combinations(group, 2)}
                elif outcome == FAILED:
                    self.failed_groups.append(group)
                    for node in group:
                        self.failures.setdefault(node, []).append(group)
        by_itself = {**self.wrong, **self.failed}
        several = len(self.nodes) > 1
        self.all_wrong = several and all(node in self.wrong for node in self.nodes)
        self.all_failed = all(node in by_itself for node in self.nodes)
        self.cleared = {node: None for node in self.nodes if node in passed and node not in by_itself}

    def _add_own_result(self, node: str, reading: StageFinding) -> None:
        if reading.verdict == FAULTY:
            self.wrong.setdefault(node, reading.detail or "it computed wrong values")
        elif reading.verdict == FAILED:
            self.failed.setdefault(node, reading.detail or "its check failed")
        elif reading.verdict == UNAVAILABLE or reading.exchange == UNAVAILABLE:
            self.unavailable.setdefault(node, reading.detail or "no reason was reported")

    def suspects(self) -> list[str]:
        """Nodes that failed in a group and for which another exchange would give new evidence."""
        settled = self.cleared.keys() | self.wrong.keys() | self.failed.keys()
        present = set(self.nodes)
        found = [node for node in self.failures if node in present and node not in settled]
        open_ = [node for node in found if len(self.conclusive_failures(node)) < 2]
        return sorted(open_, key=lambda node: len(self.failures[node]))  # fewest attempts first

    def conclusive_failures(self, node: str) -> list[Group]:
        """The failed groups of a node in which all other nodes are cleared."""
        groups = self.smallest_failures(node)
        return [group for group in groups if all(other == node or other in self.cleared for other in group)]

    def smallest_failures(self, node: str) -> list[Group]:
        """The failed groups of a node, without those that contain another failed group of it."""
        groups = self.failures.get(node, [])
        return [group for group in groups if not any(set(other) < set(group) for other in groups)]

    def pair_of(self, group: Group) -> Group:
        """The only pair of a failed group that did not pass by itself; the whole group if there are several."""
        pairs = [two for two in combinations(group, 2) if frozenset(two) not in self._passed]
        return pairs[0] if len(pairs) == 1 else group

    def detail_of(self, group: Group) -> str:
        """The first detail that a member of a failed group reported."""
        for stage in self._stages_of.get(group, ()):
            for node in group:
                reading = stage.readings.get(node)
                if reading is not None and reading.exchange == FAILED and reading.detail:
                    return reading.detail
        return "the data exchange failed"


def _outcome(group: Group, stage: Stage) -> str:
    """``failed`` if a member's exchange failed or a member is lost, ``passed`` if all passed, otherwise empty."""
    outcomes = [stage.readings[node].exchange if node in stage.readings else FAILED for node in group]
    if FAILED in outcomes:
        ill = [node for node in group if node in stage.readings and stage.readings[node].verdict == FAILED]
        return "" if ill and len(ill) == len(group) else FAILED
    return PASSED if all(outcome == PASSED for outcome in outcomes) else ""


def _failed_complete(group: Group, stage: Stage) -> bool:
    """Whether the group failed although all of its nodes answered."""
    return all(node in stage.readings for node in group) and _outcome(group, stage) == FAILED


def _with_cleared(suspects: Sequence[str], fit: Sequence[str], results: _StageResults) -> list[Group]:
    """Pair each suspect with a cleared node that is new to it, the last ones first, while there are any."""
    last = max(0, len(fit) - len(suspects))
    free = deque((*fit[last:], *fit[:last]))
    groups: list[Group] = []
    for node in suspects:
        partners = results.partners.get(node, ())
        # The search is short: a node has at most two partners per stage.
        place = next((place for place, other in enumerate(free) if other not in partners), None)
        if place is not None:
            groups.append((free[place], node))
            del free[place]
    return groups


def _among_themselves(left: Sequence[str], results: _StageResults) -> list[Group]:
    """Pair suspects that are new to each other: each one with the middle one of its remaining candidates.

    The middle one is found by counting previous partners, without a scan of the candidates.
    """
    groups: list[Group] = []
    waiting = list(left)
    order = {node: place for place, node in enumerate(left)}
    while waiting:
        node = waiting.pop(0)
        del order[node]
        known = sorted(order[other] for other in results.partners.get(node, ()) if other in order)
        if len(known) == len(waiting):
            continue
        middle = (len(waiting) - len(known)) // 2
        for place in known:
            middle += place <= order[waiting[middle]]
        other = waiting.pop(middle)
        del order[other]
        groups.append((node, other))
    return groups


def _judge_exchanges(node: str, results: _StageResults) -> UnhealthyNode:
    failures = results.smallest_failures(node)
    others = [other for group in failures for other in group if other != node]
    names = ", ".join(dict.fromkeys(others))
    if len(failures) > 1 and results.conclusive_failures(node):
        reason = f"data exchange failed with every partner ({names}): {results.detail_of(failures[-1])}"
        return UnhealthyNode(node=node, verdict=FAULTY, reason=reason)
    reason = f"data exchange failed with {names}, and no healthy node was left for a comparison"
    return UnhealthyNode(node=node, verdict=UNKNOWN, reason=reason)


def _note(results: _StageResults) -> str:
    if results.all_wrong or (results.all_failed and len(results.nodes) > 1):
        return "every node failed its own check: the check itself is more likely at fault"
    if results.failed_groups and not results.cleared:
        return "no two nodes could exchange data: no node is rejected for that"
    if results.nodes and all(node in results.unavailable for node in results.nodes):
        return f"no node could be checked: {results.unavailable[results.nodes[0]]}"
    return ""


# --- speed -----------------------------------------------------------------------------------------------------------


def _slow_in(stage: Stage) -> dict[str, str]:
    """Nodes that were clearly slower than the median in a stage, by themselves or in a group, with the message."""
    found: dict[str, str] = {}
    devices = {node: r.device_s for node, r in stage.readings.items() if r.device_s > 0}
    for node, text in _above(devices, "its devices took").items():
        found[node] = text
    passed = [group for group in stage.groups if not stage.label and _outcome(group, stage) == PASSED]
    for what, ratio, least, seconds in _EXCHANGED:
        times = {group: max(seconds(stage.readings[node]) for node in group) for group in passed}
        for group, text in _above(times, what, ratio, least).items():
            for node in group:
                found.setdefault(node, text)
    return found


_EXCHANGED: Final[tuple[tuple[str, float, float, Callable[[StageFinding], float]], ...]] = (
    ("its exchange took", SLOW_RATIO, SLOW_LEAST_S, lambda reading: reading.exchange_s),
    ("a gigabyte over TCP took", LINK_RATIO, LINK_LEAST_S, lambda reading: reading.link_s),
)
"""Measurements of a group: the text for messages, the limits, and the value of a reading."""


def _above(
    times: Mapping[_T, float], what: str, ratio: float = SLOW_RATIO, least_s: float = SLOW_LEAST_S
) -> dict[_T, str]:
    measured = [time for time in times.values() if time > 0]
    if len(measured) < SLOW_NODES_MIN // 2 + 1:
        return {}
    usual = median(sorted(measured))
    bound = max(ratio * usual, usual + least_s)
    return {key: f"{what} {time:.3g} s, others {usual:.3g} s" for key, time in times.items() if time > bound}


def _slow_in_first(results: _StageResults) -> list[str]:
    return [node for node in _slow_in(results.stages[0]) if node not in results.wrong and node not in results.failed]


def _slow_in_two(results: _StageResults) -> dict[str, str]:
    """Nodes that were slow in the first two stages in which they took part, with the message."""
    if len(results.nodes) < SLOW_NODES_MIN:
        return {}
    found: dict[str, str] = {}
    slow = [_slow_in(stage) for stage in results.stages]
    for node in results.nodes:
        took_part = [place for place, stage in enumerate(results.stages) if node in stage.readings]
        if len(took_part) > 1 and all(node in slow[place] for place in took_part[:2]):
            found[node] = slow[took_part[0]][node]
    return found
