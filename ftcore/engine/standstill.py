"""Standstills: from heartbeats to one fact about all ranks, and from that fact to a decision. Pure.

Heartbeats report the state of ranks that complete no step. The master combines these reports and records the result
(``workers.stood``) when the assessment changes. ``judge_standstill`` then decides from that fact and the folded state
alone, so that a replay makes the same decision. ``faults/standstill.py`` has the assessment.

Nodes without a recent heartbeat are ignored. Standstills of a job that is paused or recovers are not reported: their
plans have deadlines of their own.
"""

from collections.abc import Callable, Mapping, Sequence

import attrs
import msgspec

from ftcore.engine.ranks import Ranks
from ftcore.engine.turn import Turn
from ftcore.events.worker import Cut, RankState, StandstillJudged, WorkersStood, WorkersWentOn
from ftcore.faults.cuts import NO_NET, Net, cuts_of, nodes_apart
from ftcore.faults.standstill import ALERT, STACK_CHARS_MAX, StandstillAssessment, ceiling_s, judge, merged
from ftcore.policies.alerting import standstill_alert
from ftcore.shm.sections import CHECKPOINT, COMPILE, EVALUATION, FIRST_STEP, SETUP
from ftcore.states.model import JobState
from ftcore.states.phases import is_deferred, watches_standstills
from ftcore.states.rounds import WorldState
from ftcore.timing import Timing

_SECTIONS = {
    "first_step": FIRST_STEP,
    "evaluation": EVALUATION,
    "checkpoint": CHECKPOINT,
    "compile": COMPILE,
    "set_up": SETUP,
}
"""Sections by their key in the policy file."""

LOOK_S = 1.0
"""Minimum seconds between two evaluations of the heartbeats of all nodes."""


@attrs.define
class _Heard:
    """The last report of a node.

    Args:
        round: the round of its workers.
        at: time of the report in seconds.
        stands: its ranks that complete no step.
        net: its kernel's view of their connections.
    """

    round: int
    at: float
    stands: tuple[RankState, ...] = ()
    net: Net = NO_NET


class StandstillWatch:
    """The master's view of ranks that complete no step; decides when to record it."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._round = 0
        self._nodes: dict[str, _Heard] = {}
        self._changed = False
        self._looked = 0.0
        self._recorded = StandstillAssessment("")
        self._recorded_at = 0.0
        self._since: float | None = None

    def heard(
        self, node: str, round_: int, stands: Sequence[RankState] | None, now: float, net: Net | None = None
    ) -> None:
        """Take in a heartbeat.

        Args:
            node: name of the node.
            round_: the round of its workers.
            stands: its ranks that complete no step; None: unchanged.
            now: seconds of a monotonic clock.
            net: its kernel's view of their connections; None: unchanged.
        """
        known = self._nodes.get(node)
        if known is None or known.round != round_:
            known = self._nodes[node] = _Heard(round_, now)
        known.at = now
        if stands is not None and (stands or known.stands):
            known.stands = tuple(stands)
            self._changed = True
        if net is not None and net != known.net:
            known.net = net
            self._changed = True

    def look(self, state: JobState, now: float) -> WorkersStood | WorkersWentOn | None:
        """The fact to record; None if there is none.

        Args:
            state: the folded state.
            now: seconds, as for ``heard``.
        """
        world = state.rounds.world
        round_ = world.round if world is not None else 0
        if round_ != self._round:
            self._nodes = {node: heard for node, heard in self._nodes.items() if heard.round >= round_}
            self._round, self._recorded, self._since, self._changed = round_, StandstillAssessment(""), None, True
        if world is None or not self._changed or now - self._looked < LOOK_S or not _is_watched(state, world):
            return None
        self._changed, self._looked = False, now
        stands, cuts, found = self._assess(state, world, now)
        if not stands:
            return self._went_on(now)
        silent = [stand.silent_s for stand in stands if stand.silent_s is not None]
        if silent and self._since is None:
            self._since = now - max(silent)
        if not found.verdict or not self._is_news(found, now):
            return None
        self._recorded, self._recorded_at = found, now
        return WorkersStood(round=world.round, stands=tuple(_shortened(stand) for stand in stands), cuts=cuts)

    def holds(self, state: JobState, fact: WorkersStood | WorkersWentOn, now: float) -> bool:
        """Whether a fact still holds; if not, the ranks are assessed again.

        Args:
            state: the folded state.
            fact: a fact of ``look`` that is not recorded yet, for example because the log was unavailable.
            now: seconds, as for ``heard``.
        """
        world = state.rounds.world
        if isinstance(fact, WorkersWentOn) or world is None or world.round != fact.round:
            return True  # the standstill has ended, or is of an old round
        then = _judged(state, world, fact.stands, fact.cuts, self._timing)
        if self._assess(state, world, now)[2].verdict == then.verdict:
            return True
        if self._recorded.verdict == then.verdict:
            self._recorded, self._changed = StandstillAssessment(""), True
        return False

    def _assess(
        self, state: JobState, world: WorldState, now: float
    ) -> tuple[tuple[RankState, ...], tuple[Cut, ...], StandstillAssessment]:
        """The ranks that complete no step, the broken connections, and the assessment."""
        fresh = self._fresh(now)
        stands = merged(stand for heard in fresh.values() for stand in heard.stands)
        if not stands:
            return (), (), StandstillAssessment("")
        cuts = _cuts(state, world, {node: heard.net for node, heard in fresh.items()})
        return stands, cuts, _judged(state, world, stands, cuts, self._timing)

    def _fresh(self, now: float) -> dict[str, _Heard]:
        """Nodes with ranks that complete no step and with a recent heartbeat."""
        return {
            node: heard
            for node, heard in self._nodes.items()
            if heard.stands and heard.round == self._round and now - heard.at < self._timing.node_lease_s
        }

    def _is_news(self, found: StandstillAssessment, now: float) -> bool:
        if found.verdict != self._recorded.verdict:
            return True
        same = _subject(found) == _subject(self._recorded)
        return not same and now - self._recorded_at >= self._timing.hang_idle_s

    def _went_on(self, now: float) -> WorkersWentOn | None:
        recorded, since = self._recorded, self._since
        self._recorded, self._since = StandstillAssessment(""), None
        if recorded.verdict != ALERT or since is None:
            return None
        return WorkersWentOn(round=self._round, gap_s=round(now - since, 1))


def judge_standstill(turn: Turn) -> None:
    """Assess the standstill that the turn's fact reports, if it reports one."""
    data, state = turn.fact.data, turn.state
    world = state.rounds.world
    if not isinstance(data, WorkersStood) or world is None or world.round != data.round or state.spec is None:
        return
    if not _is_watched(state, world):
        return
    found = _judged(state, world, data.stands, data.cuts, state.spec.timing)
    if not found.verdict or (found.verdict == ALERT and not _is_calm(state)):
        return
    ranks, nodes, apart = found.ranks, Ranks(state), nodes_apart(found.cuts, _seats(world))
    stacks = next((stand.stacks for stand in (*found.to_blame, *data.stands) if stand.stacks), "")
    begins = found.verdict == ALERT and state.training.standstill is None
    alert = standstill_alert(state, found.message, stacks) if begins else None
    if alert is not None:
        turn.emit(alert)
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
    """Whether a standstill of this world counts: it trains, and no recovery is in progress."""
    incident = state.incident
    recovers = incident is not None and incident.kind == "fault" and incident.round >= world.round
    return world.started and watches_standstills(state) and not recovers


def _is_calm(state: JobState) -> bool:
    return state.incident is None or is_deferred(state.incident)


def _judged(
    state: JobState, world: WorldState, stands: Sequence[RankState], cuts: Sequence[Cut], timing: Timing
) -> StandstillAssessment:
    """The assessment of a standstill, with the limits that the policy file declares and the run has learned."""
    hangs, training = state.policy.declared.hangs, state.training
    learned = ceiling_s(timing, training.longest_gap_s, training.ceilings)
    ceiling = hangs.ceiling or learned
    limits = {name: getattr(hangs, key) for key, name in _SECTIONS.items() if getattr(hangs, key)}
    return judge(stands, world.size, timing, ceiling, cuts, limits=limits, steps_expected=training.reports_steps)


def _subject(found: StandstillAssessment) -> tuple[str, tuple[int, ...], tuple[tuple[str, str], ...]]:
    """Cause, ranks and broken connections of an assessment, without its figures."""
    return found.cause, found.ranks, tuple((cut.node, cut.peer) for cut in found.cuts)


def _cuts(state: JobState, world: WorldState, nets: Mapping[str, Net]) -> tuple[Cut, ...]:
    """The broken connections between members; addresses are looked up only if there are any."""
    if not any(net.unanswered for net in nets.values()):
        return ()
    nodes = state.membership.nodes
    members = {member.node: nodes[member.node].address for member in world.members if member.node in nodes}
    return cuts_of({node: net for node, net in nets.items() if node in members}, members, _seats(world))


def _seats(world: WorldState) -> Callable[[str], int]:
    return lambda node: world.seat(node) or 0


def _shortened(stand: RankState) -> RankState:
    return msgspec.structs.replace(stand, stack=stand.stack[:STACK_CHARS_MAX])
