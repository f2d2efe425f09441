"""Whose fault it is that a check failed: pairing nodes, pairing them anew, and the verdict. Pure.

Every node checks its devices by itself, then the nodes of each group exchange data. A node that fails by itself is
known at once; a group that fails only says that one of its members, or the link between them, is bad. So the suspects
of a failed group are paired anew, each with a node that has passed with somebody: {1,2} {3,4} {5,6} with 5-6 failing
becomes {1,2} {3,5} {4,6}, and if 4-6 fails as well, 6 is out and 5 is cleared. A failed group of three is taken apart
into its pairs.

- *Cleared*: passed an exchange with anybody.
- *Faulty*: failed every exchange, in two stages at least, one of them with a cleared node.
- *A link*: both ends failed together and were cleared with others; nobody is given up for it.
- *Slow*: clearly slower than the others in two stages, by itself or in its group.
- *Apart*: the nodes under one switch, all cleared in pairs, fail when they sum up data all at once: the switch or its
  set-up is told, and nobody is given up for it.
- *Unknown*: failed, and nobody known to be good was left to tell whose fault it was; nobody is given up for it.

Further stages follow while they can tell more, ``STAGES_MAX`` at most: a suspect that failed with one cleared node is
tried with another before it is given up (the link between the two may be the bad one), and where nearly everybody
failed, those that are left are mixed until two good ones meet.

House rule: where everybody fails, the check is more likely at fault than everybody. A node is only given up where
others are seen to do better, or if it computed wrong values by itself.

Source of pairing in two rounds: the node check that DLRover's documentation describes.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Final, TypeVar

import attrs

from ftcore.events.health import BadLink, Ill
from ftcore.faults.detectors.robust import median
from ftcore.states.health import Group, Reading, Stage

STAGES_MAX: Final = 6
"""Groupings that are tried: two tell it where few nodes are bad, the others where many are."""

TOGETHER_MIN: Final = 3
"""Nodes under one label that sum up data: what two can do the pairs have told already."""

TOGETHER_MAX: Final = 64
"""More nodes than one switch has; a label that more have in common is tried in parts."""

SLOW_RATIO: Final = 1.5
"""A node that takes so many times as long as the median is slow: half its speed is lost to everybody."""

SLOW_LEAST_S: Final = 0.05
"""Differences below this are noise of starting and scheduling, whatever their ratio."""

LINK_RATIO: Final = 2.0
"""For TCP from node to node, which varies more: the network is everybody's."""

LINK_LEAST_S: Final = 0.05
"""Differences below this, for a gigabyte, are noise of the processors: the network is faster than they are."""

SLOW_NODES_MIN: Final = 4
"""With fewer nodes there is no telling who is slow and who is fast."""

HEALTHY: Final = "healthy"
FAULTY: Final = "faulty"
FAILED: Final = "failed"
SLOW: Final = "slow"
UNKNOWN: Final = "unknown"
UNAVAILABLE: Final = "unavailable"
PASSED: Final = "passed"

_T = TypeVar("_T")


@attrs.frozen(kw_only=True)
class Judgement:
    """What the stages say.

    Args:
        ill: nodes that are not plainly healthy, in the order of the readings.
        links: pairs of good nodes between which data did not pass.
        apart: groups under one label, with what was said, that failed although each of their nodes is good.
        note: what the check as a whole has to say of itself; empty if nothing.
    """

    ill: tuple[Ill, ...] = ()
    links: tuple[BadLink, ...] = ()
    apart: tuple[BadLink, ...] = ()
    note: str = ""


def pair(nodes: Sequence[str]) -> tuple[Group, ...]:
    """Groups of two neighbours; the last of an odd number makes a group of three. One node alone has nobody."""
    groups = [tuple(nodes[i : i + 2]) for i in range(0, len(nodes) - 1, 2)]
    if groups and len(nodes) % 2:
        groups[-1] = (*groups[-1], nodes[-1])
    return tuple(groups)


def next_groups(stages: Sequence[Stage]) -> tuple[Group, ...]:
    """The groups of the stage that would tell more; empty if there is none.

    Args:
        stages: what was done, in order; at least one.
    """
    if len(stages) >= STAGES_MAX:
        return ()
    told = _Told(stages)
    slow = _slow_once(told) if len(stages) == 1 else []
    doubted = list(dict.fromkeys([*told.doubted(), *slow]))
    if not doubted:
        return ()
    meant = set(doubted)
    fit = [node for node in told.cleared if node not in meant]
    groups = _with_cleared(doubted, fit, told)
    met = {node for group in groups for node in group}
    groups += _among_themselves([node for node in doubted if node not in met and node not in told.cleared], told)
    met = {node for group in groups for node in group}
    if not met:
        return ()
    again = (group for group in stages[-1].groups if all(node in told.cleared and node not in met for node in group))
    return (*again, *groups)  # who is not needed does what it did: the load is the same, and a time is measured again


def together(stages: Sequence[Stage], labels: Mapping[str, str]) -> tuple[Group, ...]:
    """Good nodes with the same label, to try whether they exchange data all at once; nothing if too few have it.

    Args:
        stages: what was done in pairs; at least one.
        labels: by node, the value of the label; who has none is left out.
    """
    under: dict[str, list[str]] = {}
    for node in _Told(stages).cleared:
        if labels.get(node):
            under.setdefault(labels[node], []).append(node)
    groups = [group for nodes in under.values() if len(nodes) >= TOGETHER_MIN for group in _parts(nodes)]
    told = {frozenset(group) for stage in stages for group in stage.groups}
    return tuple(group for group in groups if frozenset(group) not in told)


def _parts(nodes: Sequence[str]) -> list[Group]:
    """As few parts as there may be, all as large as each other."""
    count = -(-len(nodes) // TOGETHER_MAX)
    return [tuple(nodes[i * len(nodes) // count : (i + 1) * len(nodes) // count]) for i in range(count)]


def judge(stages: Sequence[Stage]) -> Judgement:
    """The verdict on every node that took part.

    Args:
        stages: what was done, in order; at least one.
    """
    told = _Told(stages)
    ill: dict[str, Ill] = {}
    note = _note(told)
    for node in told.nodes:
        if told.wrong.get(node) and not told.all_wrong:
            ill[node] = Ill(node=node, verdict=FAULTY, reason=told.wrong[node])
        elif node in told.failed and not told.all_failed:
            ill[node] = Ill(node=node, verdict=FAULTY, reason=told.failed[node])
        elif node in told.wrong or node in told.failed:
            ill[node] = Ill(node=node, verdict=UNKNOWN, reason=told.wrong.get(node) or told.failed[node])
        elif node in told.failures and node not in told.cleared:
            ill[node] = _of_exchange(node, told)
        elif node in told.unavailable:
            ill[node] = Ill(node=node, verdict=UNKNOWN, reason=f"not checked: {told.unavailable[node]}")
    for node, reason in _slow_twice(told).items():
        ill.setdefault(node, Ill(node=node, verdict=SLOW, reason=reason))
    links: dict[frozenset[str], BadLink] = {}
    for group in told.failed_groups:
        if all(node in told.cleared for node in group):
            nodes = told.pair_of(group)
            links.setdefault(frozenset(nodes), BadLink(nodes=nodes, reason=told.detail_of(group)))
    apart = tuple(
        BadLink(nodes=group, reason=told.detail_of(group))
        for group in told.apart
        if all(node in told.cleared for node in group)
    )
    return Judgement(ill=tuple(ill.values()), links=tuple(links.values()), apart=apart, note=note)


class _Told:
    """All stages, read once.

    ``cleared``: passed an exchange and are not ill by themselves. ``failures``: the groups in which a node failed.
    ``met``: by node, those that it was in a group with. Nothing here looks through all nodes for each of them.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self.nodes = tuple(dict.fromkeys(node for stage in stages for node in stage.readings))
        self.wrong: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.unavailable: dict[str, str] = {}
        self.failures: dict[str, list[Group]] = {}
        self.met: dict[str, set[str]] = {}
        self.failed_groups: list[Group] = []
        self.apart: list[Group] = []
        self._passed: set[frozenset[str]] = set()
        self._stages_of: dict[Group, list[Stage]] = {}
        passed: dict[str, None] = {}
        for stage in stages:
            for group in stage.groups:
                self._stages_of.setdefault(group, []).append(stage)
            for node, reading in stage.readings.items():
                self._by_itself(node, reading)
            if stage.label:
                self.apart += [group for group in stage.groups if _failed_whole(group, stage)]
                continue
            for group in stage.groups:
                for node in group if len(group) == 2 else ():  # a group of three says little of each of its pairs
                    self.met.setdefault(node, set()).update(group)
                outcome = _of_group(group, stage)
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

    def _by_itself(self, node: str, reading: Reading) -> None:
        if reading.verdict == FAULTY:
            self.wrong.setdefault(node, reading.detail or "it computed wrong values")
        elif reading.verdict == FAILED:
            self.failed.setdefault(node, reading.detail or "its check failed")
        elif reading.verdict == UNAVAILABLE or reading.exchange == UNAVAILABLE:
            self.unavailable.setdefault(node, reading.detail or "nothing was said of why")

    def doubted(self) -> list[str]:
        """Those that failed in a group, and of whom another exchange could tell more."""
        settled = self.cleared.keys() | self.wrong.keys() | self.failed.keys()
        present = set(self.nodes)
        found = [node for node in self.failures if node in present and node not in settled]
        open_ = [node for node in found if len(self.certain(node)) < 2]
        return sorted(open_, key=lambda node: len(self.failures[node]))  # who was tried least is tried first

    def certain(self, node: str) -> list[Group]:
        """The groups in which it failed although all others of them are cleared."""
        groups = self.failing_of(node)
        return [group for group in groups if all(other == node or other in self.cleared for other in group)]

    def failing_of(self, node: str) -> list[Group]:
        """The groups in which it failed; not those that contain another one of them, which shows no more than that."""
        groups = self.failures.get(node, [])
        return [group for group in groups if not any(set(other) < set(group) for other in groups)]

    def pair_of(self, group: Group) -> Group:
        """The one pair of a failed group that did not pass by itself; the group where that is not known."""
        pairs = [two for two in combinations(group, 2) if frozenset(two) not in self._passed]
        return pairs[0] if len(pairs) == 1 else group

    def detail_of(self, group: Group) -> str:
        """What was said of a failed group by the first of its members that said something."""
        for stage in self._stages_of.get(group, ()):
            for node in group:
                reading = stage.readings.get(node)
                if reading is not None and reading.exchange == FAILED and reading.detail:
                    return reading.detail
        return "data did not pass between them"


def _of_group(group: Group, stage: Stage) -> str:
    """``failed`` if any member's exchange failed or any member is gone, ``passed`` if all passed, else nothing."""
    outcomes = [stage.readings[node].exchange if node in stage.readings else FAILED for node in group]
    if FAILED in outcomes:
        ill = [node for node in group if node in stage.readings and stage.readings[node].verdict == FAILED]
        return "" if ill and len(ill) == len(group) else FAILED
    return PASSED if all(outcome == PASSED for outcome in outcomes) else ""


def _failed_whole(group: Group, stage: Stage) -> bool:
    """It failed, and not because one of its nodes went away."""
    return all(node in stage.readings for node in group) and _of_group(group, stage) == FAILED


def _with_cleared(doubted: Sequence[str], fit: Sequence[str], told: _Told) -> list[Group]:
    """Each doubted node with a cleared one that it has not met, the last ones first, as long as there are some."""
    last = max(0, len(fit) - len(doubted))
    free = deque((*fit[last:], *fit[:last]))
    groups: list[Group] = []
    for node in doubted:
        met = told.met.get(node, ())
        # As few as it has met are passed over: no stage puts it together with more than two others.
        place = next((place for place, other in enumerate(free) if other not in met), None)
        if place is not None:
            groups.append((free[place], node))
            del free[place]
    return groups


def _among_themselves(left: Sequence[str], told: _Told) -> list[Group]:
    """Doubted nodes with each other, where they have not met: each with the middle one of those that are left for it.

    That one is found by counting those that it has met, not by looking at the others.
    """
    groups: list[Group] = []
    waiting = list(left)
    order = {node: place for place, node in enumerate(left)}
    while waiting:
        node = waiting.pop(0)
        del order[node]
        met = sorted(order[other] for other in told.met.get(node, ()) if other in order)
        if len(met) == len(waiting):
            continue
        middle = (len(waiting) - len(met)) // 2
        for place in met:
            middle += place <= order[waiting[middle]]
        other = waiting.pop(middle)
        del order[other]
        groups.append((node, other))
    return groups


def _of_exchange(node: str, told: _Told) -> Ill:
    failures = told.failing_of(node)
    others = [other for group in failures for other in group if other != node]
    names = ", ".join(dict.fromkeys(others))
    if len(failures) > 1 and told.certain(node):
        reason = f"exchanged data with nobody it was paired with ({names}): {told.detail_of(failures[-1])}"
        return Ill(node=node, verdict=FAULTY, reason=reason)
    reason = f"exchanged no data with {names}, and nobody was left to tell whose fault it was"
    return Ill(node=node, verdict=UNKNOWN, reason=reason)


def _note(told: _Told) -> str:
    if told.all_wrong or (told.all_failed and len(told.nodes) > 1):
        return "every node failed by itself: the check is more likely at fault than all of them"
    if told.failed_groups and not told.cleared:
        return "no two nodes exchanged data: nobody is given up for that"
    if told.nodes and all(node in told.unavailable for node in told.nodes):
        return f"no node could be checked: {told.unavailable[told.nodes[0]]}"
    return ""


# --- speed -----------------------------------------------------------------------------------------------------------


def _slow_in(stage: Stage) -> dict[str, str]:
    """Who was clearly slower than the median in a stage, by itself or in its group, with the words for it."""
    found: dict[str, str] = {}
    devices = {node: r.device_s for node, r in stage.readings.items() if r.device_s > 0}
    for node, text in _above(devices, "its devices took").items():
        found[node] = text
    passed = [group for group in stage.groups if not stage.label and _of_group(group, stage) == PASSED]
    for what, ratio, least, seconds in _EXCHANGED:
        times = {group: max(seconds(stage.readings[node]) for node in group) for group in passed}
        for group, text in _above(times, what, ratio, least).items():
            for node in group:
                found.setdefault(node, text)
    return found


_EXCHANGED: Final[tuple[tuple[str, float, float, Callable[[Reading], float]], ...]] = (
    ("its exchange took", SLOW_RATIO, SLOW_LEAST_S, lambda reading: reading.exchange_s),
    ("a gigabyte over TCP took", LINK_RATIO, LINK_LEAST_S, lambda reading: reading.link_s),
)
"""What is measured of a group: the words for it, what is slow, and where it is read."""


def _above(
    times: Mapping[_T, float], what: str, ratio: float = SLOW_RATIO, least_s: float = SLOW_LEAST_S
) -> dict[_T, str]:
    measured = [time for time in times.values() if time > 0]
    if len(measured) < SLOW_NODES_MIN // 2 + 1:
        return {}
    usual = median(sorted(measured))
    bound = max(ratio * usual, usual + least_s)
    return {key: f"{what} {time:.3g} s, others {usual:.3g} s" for key, time in times.items() if time > bound}


def _slow_once(told: _Told) -> list[str]:
    return [node for node in _slow_in(told.stages[0]) if node not in told.wrong and node not in told.failed]


def _slow_twice(told: _Told) -> dict[str, str]:
    """Slow in the first two stages in which the node took part."""
    if len(told.nodes) < SLOW_NODES_MIN:
        return {}
    found: dict[str, str] = {}
    slow = [_slow_in(stage) for stage in told.stages]
    for node in told.nodes:
        took_part = [place for place, stage in enumerate(told.stages) if node in stage.readings]
        if len(took_part) > 1 and all(node in slow[place] for place in took_part[:2]):
            found[node] = slow[took_part[0]][node]
    return found
