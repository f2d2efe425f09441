"""Standing still: from heartbeats to one fact about all ranks, and from that fact to a decision. Pure.

Agents say in their heartbeats what ranks do that complete no step. The master puts that together and records it
(``workers.stood``) when it comes to mean something else; ``judge_standstill`` then decides from that fact and the
folded state alone, so that the decision can be replayed. ``faults/standstill.py`` says what means what.

House rules: a node that was not heard lately is not known, however it stood before. Nothing is told of a job that is
paused, or in a recovery: there, others decide when it took too long.
"""

from collections.abc import Callable, Mapping, Sequence

import attrs

from ftcore.engine.ranks import Ranks
from ftcore.engine.turn import Turn
from ftcore.events.worker import Cut, Stand, StandstillJudged, WorkersStood, WorkersWentOn
from ftcore.faults.cuts import NO_NET, Net, at_odds, cuts_of
from ftcore.faults.standstill import ALERT, STACK_CHARS_MAX, Judgement, ceiling_s, judge, merged
from ftcore.policies.alerting import word_of_standstill
from ftcore.states.model import JobState, WorldState
from ftcore.states.phases import is_deferred, watches_standstills
from ftcore.timing import Timing

LOOK_S = 1.0
"""What thousands of nodes say is put together no more often."""


@attrs.define
class _Heard:
    """What a node said last.

    Args:
        round: the round of its workers.
        at: when, in seconds.
        stands: its ranks that complete no step.
        net: what its kernel says of their connections.
    """

    round: int
    at: float
    stands: tuple[Stand, ...] = ()
    net: Net = NO_NET


class StandstillWatch:
    """The master's: what the ranks of a world do, and when that is to be recorded."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._round = 0
        self._nodes: dict[str, _Heard] = {}
        self._news = False
        self._looked = 0.0
        self._told = Judgement("")
        self._told_at = 0.0
        self._since: float | None = None

    def heard(self, node: str, round_: int, stands: Sequence[Stand] | None, now: float, net: Net | None = None) -> None:
        """A heartbeat came.

        Args:
            node: of this node.
            round_: the round of its workers.
            stands: its ranks that complete no step; None: as it said before.
            now: seconds of a clock that is never stepped.
            net: what its kernel says of their connections; None: as it said before.
        """
        known = self._nodes.get(node)
        if known is None or known.round != round_:
            known = self._nodes[node] = _Heard(round_, now)
        known.at = now
        if stands is not None and (stands or known.stands):
            known.stands = tuple(stands)
            self._news = True
        if net is not None and net != known.net:
            known.net = net
            self._news = True

    def look(self, state: JobState, now: float) -> WorkersStood | WorkersWentOn | None:
        """What is to be recorded, if anything.

        Args:
            state: the folded state.
            now: seconds, as for ``heard``.
        """
        world = state.world
        round_ = world.round if world is not None else 0
        if round_ != self._round:
            self._nodes = {node: heard for node, heard in self._nodes.items() if heard.round >= round_}
            self._round, self._told, self._since, self._news = round_, Judgement(""), None, True
        if world is None or not self._news or now - self._looked < LOOK_S or not _is_watched(state, world):
            return None
        self._news, self._looked = False, now
        stands, cuts, found = self._seen(state, world, now)
        if not stands:
            return self._went_on(now)
        silent = [stand.silent_s for stand in stands if stand.silent_s is not None]
        if silent and self._since is None:
            self._since = now - max(silent)
        if not found.verdict or not self._is_news(found, now):
            return None
        self._told, self._told_at = found, now
        return WorkersStood(round=world.round, stands=tuple(_shortened(stand) for stand in stands), cuts=cuts)

    def holds(self, state: JobState, told: WorkersStood | WorkersWentOn, now: float) -> bool:
        """Whether workers still stand as they did; if not, they are looked at anew.

        Args:
            state: the folded state.
            told: what was to be recorded; while the log is out of reach, its turn comes late.
            now: seconds, as for ``heard``.
        """
        world = state.world
        if isinstance(told, WorkersWentOn) or world is None or world.round != told.round:
            return True  # it ended, or means nothing any more
        then = judge(told.stands, world.size, self._timing, _ceiling_s(state, self._timing), told.cuts)
        if self._seen(state, world, now)[2].verdict == then.verdict:
            return True
        if self._told.verdict == then.verdict:
            self._told, self._news = Judgement(""), True
        return False

    def _seen(
        self, state: JobState, world: WorldState, now: float
    ) -> tuple[tuple[Stand, ...], tuple[Cut, ...], Judgement]:
        """What the ranks do, who cannot reach whom, and what it is taken for."""
        fresh = self._fresh(now)
        stands = merged(stand for heard in fresh.values() for stand in heard.stands)
        if not stands:
            return (), (), Judgement("")
        cuts = _cuts(state, world, {node: heard.net for node, heard in fresh.items()})
        return stands, cuts, judge(stands, world.size, self._timing, _ceiling_s(state, self._timing), cuts)

    def _fresh(self, now: float) -> dict[str, _Heard]:
        """Nodes with ranks that complete no step, of those that were heard lately."""
        return {
            node: heard
            for node, heard in self._nodes.items()
            if heard.stands and heard.round == self._round and now - heard.at < self._timing.node_lease_s
        }

    def _is_news(self, found: Judgement, now: float) -> bool:
        if found.verdict != self._told.verdict:
            return True
        same = _about(found) == _about(self._told)
        return not same and now - self._told_at >= self._timing.hang_idle_s

    def _went_on(self, now: float) -> WorkersWentOn | None:
        told, since = self._told, self._since
        self._told, self._since = Judgement(""), None
        if told.verdict != ALERT or since is None:
            return None
        return WorkersWentOn(round=self._round, gap_s=round(now - since, 1))


def judge_standstill(turn: Turn) -> None:
    """Decide what a standstill is taken for, if the turn's fact tells of one."""
    data, state = turn.fact.data, turn.state
    world = state.world
    if not isinstance(data, WorkersStood) or world is None or world.round != data.round or state.spec is None:
        return
    if not _is_watched(state, world):
        return
    timing = state.spec.timing
    found = judge(data.stands, world.size, timing, _ceiling_s(state, timing), data.cuts)
    if not found.verdict or (found.verdict == ALERT and not _is_calm(state)):
        return
    ranks, nodes, apart = found.ranks, Ranks(state), at_odds(found.cuts, _seats(world))
    stacks = next((stand.stacks for stand in (*found.to_blame, *data.stands) if stand.stacks), "")
    word = (
        word_of_standstill(state, found.message, stacks)
        if found.verdict == ALERT and state.standstill is None
        else None
    )
    if word is not None:
        turn.emit(word)
    turn.emit(
        StandstillJudged(
            round=data.round,
            verdict=found.verdict,
            cause=found.cause,
            node=apart[0] if apart else nodes[ranks[0]] if ranks and ranks[0] in nodes else "",
            ranks=ranks,
            message=found.message,
            stack=next((stand.stack for stand in found.to_blame if stand.stack), ""),
            stacks=stacks,
            apart=apart,
        )
    )


def _is_watched(state: JobState, world: WorldState) -> bool:
    """Whether a standstill of this world is anything: it trains, and is not being recovered already."""
    known = state.incident
    recovers = known is not None and known.kind == "fault" and known.round >= world.round
    return world.started and watches_standstills(state) and not recovers


def _is_calm(state: JobState) -> bool:
    return state.incident is None or is_deferred(state.incident)


def _ceiling_s(state: JobState, timing: Timing) -> float:
    return ceiling_s(timing, state.longest_gap_s, state.ceilings)


def _about(found: Judgement) -> tuple[str, tuple[int, ...], tuple[tuple[str, str], ...]]:
    """What it is about, figures aside."""
    return found.cause, found.ranks, tuple((cut.node, cut.peer) for cut in found.cuts)


def _cuts(state: JobState, world: WorldState, nets: Mapping[str, Net]) -> tuple[Cut, ...]:
    """Members that get no answer from other members; addresses are only looked up if there is one that gets none."""
    if not any(net.unanswered for net in nets.values()):
        return ()
    members = {member.node: state.nodes[member.node].address for member in world.members if member.node in state.nodes}
    return cuts_of({node: net for node, net in nets.items() if node in members}, members, _seats(world))


def _seats(world: WorldState) -> Callable[[str], int]:
    return lambda node: world.seat(node) or 0


def _shortened(stand: Stand) -> Stand:
    return attrs.evolve(stand, stack=stand.stack[:STACK_CHARS_MAX])
