"""Checkers of invariants, one class per invariant of the project's list.

A checker compares the log with the state of the simulated world and raises ``Violation``.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ftcore.commands import (
    DeleteNodes,
    FindBoundary,
    ParkWorkers,
    PauseWorkers,
    ReplaceNodes,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.engine import actions as act
from ftcore.engine.decide import turn
from ftcore.engine.orders import Order
from ftcore.events.action import ActionFailed, ActionOrdered, ActionSuperseded
from ftcore.events.envelope import Event, Fact
from ftcore.events.incident import (
    DepartureBegun,
    DepartureDeferred,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import JobFinished, JobRolledBack, JobSubmitted
from ftcore.events.node import NodeJoined, NodeWarmed, OrderRefused, PlatformAnswered
from ftcore.events.policy import PlanApplied, PolicyConsidered
from ftcore.events.registry import Kind
from ftcore.events.worker import StandstillJudged
from ftcore.faults.standstill import HANG
from ftcore.runtime.agent.workers.boundary import AGREE_S
from ftcore.sim.protocol.checker import Checker
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.saved_checkers import AKilledWorkerCostsAStep, ResumesFromWhatIsHeld
from ftcore.sim.protocol.training import Gang, NodeWorkers
from ftcore.states.fold import fold
from ftcore.states.model import JobState, to_json

EQUAL_EVERY, JSON_EVERY = 4, 8
"""Commits of a master from one comparison of the state's value, and of its JSON, to the next."""

LATE_S = 1.0
"""Allowed delay between an event in the world and the master's decision, in seconds."""


class AcknowledgedFactsStand(Checker):
    """1. An acknowledged event is lost, reordered, duplicated or changed."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._data: dict[tuple[str, str, int], Any] = {}
        self._newest: dict[tuple[str, str], int] = {}

    def appended(self, event: Event) -> None:
        """Facts of one incarnation are in the order of their numbers, without repeats.

        A number may be missing: of a fact that was never acknowledged, and that a full disk did not store.
        """
        if event.kind is not Kind.FACT or event.id.source == "master":
            return
        life = (event.id.source, event.id.incarnation)
        if event.id.n <= self._newest.get(life, 0):
            self.fail(f"{event.id} follows number {self._newest.get(life, 0)} of the same incarnation")
        self._newest[life] = event.id.n
        self._data[event.id] = event.data

    def ended(self) -> None:
        """All truncated events are in the archive."""
        floor, archived = self.sim.store.contents.floor.seq, self.sim.archive.bodies
        if archived[:floor] != self.sim.store.bodies[:floor]:
            self.fail(f"the live log is truncated up to {floor}, but the archive has {len(archived)} events")

    def acknowledged(self, facts: list[Fact]) -> None:
        """Acknowledged facts are in the log, unchanged."""
        for fact in facts:
            if fact.id not in self._data:
                self.fail(f"{fact.id} {fact.type} was acknowledged and is not in the log")
            if self._data[fact.id] != fact.data:
                self.fail(f"{fact.id} {fact.type} differs in the log")


class EffectsFollowTheLog(Checker):
    """2. An effect without a decision in the log; an agent that obeys an older term or round than before."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._addressed: dict[str, dict[str, str]] = {}
        self._terms: dict[str, int] = {}
        self._rounds: dict[str, int] = {}

    def appended(self, event: Event) -> None:
        """Record the addressees of each order."""
        if isinstance(event.data, ActionOrdered):
            state = self.sim.oracle
            nodes, world = state.membership.nodes, state.rounds.world
            names = event.data.nodes or tuple(member.node for member in (world.members if world is not None else ()))
            lives = {name: nodes[name].incarnation for name in names if name in nodes}
            self._addressed[event.data.effect] = lives

    def obeyed(self, node: str, incarnation: str, order: Order, actions: act.Actions) -> None:
        """An agent acts only on an order to its incarnation, of the newest term and round."""
        if not actions or all(isinstance(a, act.Tell) and isinstance(a.data, OrderRefused) for a in actions):
            return
        life = incarnation
        if order.effect not in self._addressed:
            self.fail(f"{life} executes {order.effect}, which is not in the log")
        if self._addressed[order.effect].get(node) != life:
            self.fail(f"{life} executes {order.effect}, which is addressed to {self._addressed[order.effect]}")
        if order.term < self._terms.get(life, 0):
            self.fail(f"{life} obeys term {order.term} after term {self._terms[life]}")
        self._terms[life] = order.term
        if isinstance(order.command, StartWorkers):
            if order.command.round <= self._rounds.get(life, 0):
                self.fail(f"{life} starts round {order.command.round} after round {self._rounds[life]}")
            self._rounds[life] = order.command.round


class OneRoundTrains(Checker):
    """3. Workers of two rounds train at the same time."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._newest = 0

    def stepped(self, gang: Gang) -> None:
        """No round completes a step after a newer round has."""
        if gang.round < self._newest:
            self.fail(f"round {gang.round} completed step {gang.step} after round {self._newest} had begun")
        self._newest = gang.round


class IncidentsEnd(Checker):
    """4. An incident neither resolves nor escalates, or a budget is exceeded."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._open = ""
        self._asked: set[tuple[str, int, str]] = set()

    def appended(self, event: Event) -> None:
        """One incident at a time; each policy is asked once per revision; restarts are within their budget."""
        data = event.data
        if isinstance(data, IncidentOpened):
            if self._open:
                self.fail(f"{event.incident} opens while {self._open} is open")
            self._open = str(event.incident)
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            self._open = ""
        elif isinstance(data, JobFinished) and self._open:
            self.fail(f"the run ends with {self._open} open")
        elif isinstance(data, PolicyConsidered):
            self._considered(event, data)

    def _considered(self, event: Event, data: PolicyConsidered) -> None:
        key = (str(event.incident), data.revision, data.policy)
        if key in self._asked:
            self.fail(f"{data.policy} is asked twice about revision {data.revision} of {event.incident}")
        self._asked.add(key)
        if data.policy != "process_restart" or data.verdict != "take" or data.attempt is None:
            return
        options = next(e.options for e in self.sim.options.policy.chain if e.policy == "process_restart")
        if data.attempt > options["max_restarts"]:
            self.fail(f"restart {data.attempt} of {options['max_restarts']}")

    def ended(self) -> None:
        """No incident is open at the end."""
        if self._open:
            self.fail(f"{self._open} is still open: {self.sim.oracle.incident}")


class ResumesFromWhatWasSaved(Checker):
    """5. The job resumes from a step that was not saved, or from a discarded lineage."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._seen = 0

    def stepped(self, gang: Gang) -> None:
        """Each round began at a checkpoint of the current lineage."""
        if self.sim.saved is not None:
            return  # see ``ResumesFromWhatIsHeld``
        for round_, step in self.sim.training.resumed[self._seen :]:
            if step not in self.sim.training.checkpoints:
                self.fail(f"round {round_} resumes from step {step}; saved are {self.sim.training.checkpoints[-5:]}")
        self._seen = len(self.sim.training.resumed)


class NothingIsReadTwiceUnsaid(Checker):
    """6. Data of the current lineage is read twice or skipped without an event that records it."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._floor = 0

    def appended(self, event: Event) -> None:
        """A rollback is recorded."""
        if isinstance(event.data, JobRolledBack):
            self._floor = event.data.step
            self.sim.training.roll_back(event.data.step)

    def stepped(self, gang: Gang) -> None:
        """No round repeats steps before the newest checkpoint."""
        if self.sim.saved is not None:
            return  # see ``AKilledWorkerCostsAStep``
        if gang.step <= self._floor and self._floor in self.sim.training.checkpoints:
            self.fail(f"round {gang.round} repeats step {gang.step}, although step {self._floor} was saved")
        if gang.step in self.sim.training.checkpoints:
            self._floor = max(self._floor, gang.step)


class ReplayAgrees(Checker):
    """7. Replay of a log gives another state than the live master's, or other decisions."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._made: list[Event] = []
        self._commits: dict[str, int] = {}

    def verify(self, oracle: JobState, event: Event) -> None:
        """Repeat the decisions of a recorded fact, and compare them with the recorded ones.

        Args:
            oracle: the state before the event's group; if the event is a decision, after the group.
            event: the next event of the log.
        """
        if event.kind is Kind.FACT:
            if self._made:
                self.fail(f"missing before {event.seq}: {self._made[0]}")
            self._made = turn(oracle, event)
        if not self._made:
            self.fail(f"a decision without a fact: {event}")
        made = self._made.pop(0)
        if made != event:
            self.fail(f"repeated decision {made}, recorded decision {event}")

    def committed(self, address: str, state: JobState) -> None:
        """The live master's state is that of the log.

        It is compared by value at the first commit of each master and then at some: a difference lasts. Its JSON, which
        also shows the order of its containers, is compared less often, because that costs much more.
        """
        oracle, commits = self.sim.oracle, self._commits.get(address, 0)
        if state.seq != oracle.seq:
            return
        self._commits[address] = commits + 1
        differs = commits % EQUAL_EVERY == 0 and state != oracle
        if differs or (commits % JSON_EVERY == 0 and to_json(state) != to_json(oracle)):
            self.fail(f"the state of {address} at seq {state.seq} differs from that of the log")

    def ended(self) -> None:
        """The fold of the whole log gives the state from which decisions were made."""
        state = JobState()
        for event in self.sim.store.events:
            fold(state, event)
        if to_json(state) != to_json(self.sim.oracle):
            self.fail("the fold of the log differs from the state of its turns")


class OwnFaultsStopNothing(Checker):
    """8. A fault in ftcore itself stops healthy training."""

    def stopping(self, ranks: NodeWorkers) -> None:
        """If only ftcore and its store failed, workers that complete steps are never stopped."""
        if self.sim.options.harmless and not self.sim.conditions.harms and self.sim.training.healthy(ranks):
            self.fail(f"{ranks.process.name} stops healthy workers")


class HealthyStandstillsAreLeftAlone(Checker):
    """9. Workers that make progress, or will by themselves, are stopped for a hang before the ceiling."""

    def decided(self, group: Sequence[Event]) -> None:
        """Only real hangs, or rounds without a step for the ceiling, are judged as hangs."""
        for data in (event.data for event in group):
            if isinstance(data, StandstillJudged) and data.verdict == HANG:
                self._hangs(data)

    def _hangs(self, data: StandstillJudged) -> None:
        training, timing = self.sim.training, self.sim.options.spec.timing
        gang, now = training.gangs[data.round], training.clock.now
        late = ns(LATE_S + timing.node_lease_s + timing.hang_look_s)
        if data.cause == "ceiling":
            self.sim.conditions.harm("no step within the ceiling")
            stood = now - max(ranks.mono for ranks in gang.members.values())
            if now - gang.stood_at <= late:  # it resumed only recently
                stood = max(stood, gang.stood_ns)
            if stood < ns(timing.hang_ceiling_s):
                self.fail(f"round {data.round} without a step for {stood / 1e9:.1f} s was judged to exceed the ceiling")
        elif not training.ill(gang) and now - gang.ill_at > late:
            self.fail(f"healthy workers of round {data.round} were judged to hang ({data.cause}): {data.message}")


class DeparturesWait(Checker):
    """10. A training node leaves before its replacement is ready, or replacements are launched twice."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._launched: dict[str, str] = {}
        self._cold: set[str] = set()
        self._waits = ""
        self._replaces = False

    def appended(self, event: Event) -> None:
        """No worker is stopped while a departure waits; it begins when replacements are ready, launched once."""
        data, incident = event.data, str(event.incident)
        if isinstance(data, NodeJoined | NodeWarmed):
            (self._cold.add if isinstance(data, NodeJoined) and data.warms else self._cold.discard)(data.node)
        elif isinstance(data, PolicyConsidered) and data.verdict == "take":
            self._replaces = data.terms is not None and bool(data.terms.replace)
        elif isinstance(data, DepartureDeferred):
            self._waits = incident
        elif isinstance(data, DepartureBegun):
            self._begins(data)
        elif isinstance(data, IncidentRediagnosed | IncidentEscalated | IncidentResolved | JobSubmitted):
            self._waits = ""
            if not isinstance(data, IncidentRediagnosed | IncidentResolved):
                self._launched = {}
        elif isinstance(data, ActionOrdered):
            self._ordered(data, incident)
        elif isinstance(data, ActionFailed | ActionSuperseded) or (isinstance(data, PlatformAnswered) and not data.ok):
            self._launched = {node: effect for node, effect in self._launched.items() if effect != data.effect}

    def _begins(self, data: DepartureBegun) -> None:
        self._waits = ""
        if self._replaces and not data.ready:
            self.fail(f"{data.nodes} leave, but no replacement is ready")
        if cold := self._cold.intersection(data.ready):
            self.fail(f"{data.nodes} leave for {cold}, which cannot start workers yet")

    def _ordered(self, data: ActionOrdered, incident: str) -> None:
        command = data.command
        if isinstance(command, StopWorkers | ParkWorkers) and incident == self._waits:
            self.fail(f"{data.effect}, while {incident} waits for replacements")
        elif isinstance(command, ReplaceNodes):
            if twice := self._launched.keys() & {*command.nodes}:
                self.fail(f"{data.effect} launches replacements again for {twice}: {self._launched}")
            self._launched |= dict.fromkeys(command.nodes, data.effect) if command.keep else {}
        elif isinstance(command, DeleteNodes):
            self._launched = {node: effect for node, effect in self._launched.items() if node not in command.nodes}
        elif isinstance(command, StartWorkers) and self.sim.oracle.rounds.world is not None:
            self._cold -= {member.node for member in self.sim.oracle.rounds.world.members}


class RanksStopTogether(Checker):
    """11. Ranks are ordered to a step boundary that one of them has passed, or a paused job's ranks differ in steps."""

    def __init__(self, sim: Environment) -> None:
        super().__init__(sim)
        self._found_at = 0

    def appended(self, event: Event) -> None:
        """The boundary of an order is ahead of all ranks, and all ranks of a paused job wait at the same one."""
        data = event.data
        if isinstance(data, PlanApplied) and data.then == "pause":
            self._paused()
        if not isinstance(data, ActionOrdered):
            return
        if isinstance(data.command, FindBoundary):
            self._found_at = self.sim.clock.now
        elif isinstance(data.command, PauseWorkers | SaveCheckpoint) and data.command.boundary:
            self._ordered(data.effect, data.command.round, data.command.boundary)

    def _ordered(self, effect: str, round_: int, boundary: int) -> None:
        if self.sim.clock.now - self._found_at >= ns(AGREE_S):
            return  # the ranks may have gone on
        for ranks in self._alive(round_):
            if ranks.steps + (not ranks.waits) > boundary:
                self.fail(f"{effect} names boundary {boundary}; {ranks.process.name} is past {ranks.steps}")

    def _paused(self) -> None:
        world = self.sim.oracle.rounds.world
        at = {ranks.steps if ranks.waits else -1 for ranks in self._alive(world.round if world is not None else 0)}
        if -1 in at or len(at) > 1:
            self.fail(f"the job is paused, and its ranks wait at the boundaries {sorted(at)}; -1: a rank does not wait")

    def _alive(self, round_: int) -> list[NodeWorkers]:
        gang = self.sim.training.gangs.get(round_)
        members = gang.members.values() if gang is not None and not gang.done else ()
        return [ranks for ranks in members if all(ranks.alive) and ranks.process.alive and not ranks.parked]


ALL = (
    AcknowledgedFactsStand,
    EffectsFollowTheLog,
    OneRoundTrains,
    IncidentsEnd,
    ResumesFromWhatWasSaved,
    NothingIsReadTwiceUnsaid,
    ReplayAgrees,
    OwnFaultsStopNothing,
    HealthyStandstillsAreLeftAlone,
    DeparturesWait,
    RanksStopTogether,
    ResumesFromWhatIsHeld,
    AKilledWorkerCostsAStep,
)


def hooks(checkers: Sequence[Checker]) -> dict[str, list[Callable[..., None]]]:
    """The methods that checkers override, by name, in the order of the checkers."""
    names = [name for name in vars(Checker) if not name.startswith("_")]
    return {
        name: [getattr(each, name) for each in checkers if getattr(type(each), name) is not getattr(Checker, name)]
        for name in names
    }
