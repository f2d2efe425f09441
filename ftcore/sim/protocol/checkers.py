"""What must never happen, one checker to each line of the project's list; each sees only what it needs.

A checker compares what the log says with what took place in the simulated world. It raises ``Violation``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ftcore.commands import DeleteNodes, ParkWorkers, ReplaceNodes, StartWorkers, StopWorkers
from ftcore.engine import actions as act
from ftcore.engine.decide import turn
from ftcore.engine.orders import Order
from ftcore.events.action import ActionFailed, ActionOrdered, ActionSuperseded
from ftcore.events.codec import decode_fact
from ftcore.events.envelope import Event
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
from ftcore.events.policy import PolicyConsidered
from ftcore.events.registry import Kind
from ftcore.events.worker import StandstillJudged
from ftcore.faults.standstill import HANG
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.training import Gang
from ftcore.states.fold import fold
from ftcore.states.model import JobState, digest

if TYPE_CHECKING:
    from ftcore.sim.protocol.master import MasterProcess
    from ftcore.sim.protocol.node import Node
    from ftcore.sim.protocol.simulation import Simulation


LATE_S = 1.0
"""What a node tells, and what a master makes of it, is so late."""


class Violation(Exception):
    """Something happened that must never happen."""


class Checker:
    """Sees what happens; a subclass overrides what it looks at.

    Args:
        sim: the simulation.
    """

    def __init__(self, sim: "Simulation") -> None:
        self.sim = sim

    def fail(self, text: str) -> None:
        """Raise ``Violation`` with the name of the checker."""
        raise Violation(f"{type(self).__name__}: {text}")

    def appended(self, event: Event) -> None:
        """An event is durable; the simulation's ``oracle`` stands behind its whole group."""

    def acknowledged(self, node: str, incarnation: str, n: int, bodies: list[bytes]) -> None:
        """An agent was told that these facts are durable."""

    def obeyed(self, node: "Node", order: Order, actions: act.Actions) -> None:
        """An agent got an order and does this."""

    def stepped(self, gang: Gang) -> None:
        """A round completed a step."""

    def stopping(self, node: "Node") -> None:
        """An agent is about to stop living workers."""

    def decided(self, group: Sequence[Event]) -> None:
        """A master has decided what follows from a fact."""

    def committed(self, master: "MasterProcess") -> None:
        """A master learned that a batch is durable; its state stands right behind it."""

    def ended(self) -> None:
        """The simulation is over."""


class AcknowledgedFactsStand(Checker):
    """1. An acknowledged event is lost, reordered, duplicated or changed."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._data: dict[tuple[str, str, int], Any] = {}
        self._newest: dict[tuple[str, str], int] = {}

    def appended(self, event: Event) -> None:
        """Facts of one life stand in the order of their numbers, once.

        A number may be missing: of a fact that nobody acknowledged and that a full disk kept from the life's successor.
        """
        if event.kind is not Kind.FACT or event.id.source == "master":
            return
        life = (event.id.source, event.id.incarnation)
        if event.id.n <= self._newest.get(life, 0):
            self.fail(f"{event.id} follows number {self._newest.get(life, 0)} of the same life")
        self._newest[life] = event.id.n
        self._data[event.id] = event.data

    def ended(self) -> None:
        """What was taken out of the live log is in the archive, all of it."""
        floor, archived = self.sim.store.floor.seq, self.sim.archive.bodies
        if archived[:floor] != self.sim.store.bodies[:floor]:
            self.fail(f"the live log begins behind {floor}, and the archive holds {len(archived)} events")

    def acknowledged(self, node: str, incarnation: str, n: int, bodies: list[bytes]) -> None:
        """What an agent may forget is in the log as it was told."""
        for fact in map(decode_fact, bodies):
            if fact.id not in self._data:
                self.fail(f"{fact.id} {fact.type} was acknowledged and is not in the log")
            if self._data[fact.id] != fact.data:
                self.fail(f"{fact.id} {fact.type} stands in the log as something else")


class EffectsFollowTheLog(Checker):
    """2. An effect takes place whose decision is not in the log; an agent obeys anything older than what it obeyed."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._addressed: dict[str, dict[str, str]] = {}
        self._terms: dict[str, int] = {}
        self._rounds: dict[str, int] = {}

    def appended(self, event: Event) -> None:
        """Remember who was ordered what."""
        if isinstance(event.data, ActionOrdered):
            state = self.sim.oracle
            names = event.data.nodes or tuple(m.node for m in state.world.members if state.world is not None)  # type: ignore[union-attr]
            lives = {name: state.nodes[name].incarnation for name in names if name in state.nodes}
            self._addressed[event.data.effect] = lives

    def obeyed(self, node: "Node", order: Order, actions: act.Actions) -> None:
        """Whoever does something was ordered to, in this life, by nobody older."""
        if not actions or all(isinstance(a, act.Tell) and isinstance(a.data, OrderRefused) for a in actions):
            return
        life = node.life
        if order.effect not in self._addressed:
            self.fail(f"{life} does {order.effect}, which is not in the log")
        if self._addressed[order.effect].get(node.node) != life:
            self.fail(f"{life} does {order.effect}, which was ordered from {self._addressed[order.effect]}")
        if order.term < self._terms.get(life, 0):
            self.fail(f"{life} obeys term {order.term} after term {self._terms[life]}")
        self._terms[life] = order.term
        if isinstance(order.command, StartWorkers):
            if order.command.round <= self._rounds.get(life, 0):
                self.fail(f"{life} starts round {order.command.round} after round {self._rounds[life]}")
            self._rounds[life] = order.command.round


class OneRoundTrains(Checker):
    """3. Workers of two rounds train at the same time into the same job."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._newest = 0

    def stepped(self, gang: Gang) -> None:
        """No round completes a step behind a newer one."""
        if gang.round < self._newest:
            self.fail(f"round {gang.round} completed step {gang.step} after round {self._newest} had begun")
        self._newest = gang.round


class IncidentsEnd(Checker):
    """4. An incident neither resolves nor escalates, or a budget is exceeded."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._open = ""
        self._asked: set[tuple[str, int, str]] = set()

    def appended(self, event: Event) -> None:
        """One incident at a time; each policy is asked once per revision; restarts stay within their budget."""
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
        """Nothing is open at the end."""
        if self._open:
            self.fail(f"{self._open} is still open: {self.sim.oracle.incident}")


class ResumesFromWhatWasSaved(Checker):
    """5. The job resumes from a step that was not saved, or of a lineage that was given up."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._seen = 0

    def stepped(self, gang: Gang) -> None:
        """Each round began at a checkpoint of the living lineage."""
        for round_, step in self.sim.training.resumed[self._seen :]:
            if step not in self.sim.training.checkpoints:
                self.fail(f"round {round_} resumes from step {step}; saved are {self.sim.training.checkpoints[-5:]}")
        self._seen = len(self.sim.training.resumed)


class NothingIsReadTwiceUnsaid(Checker):
    """6. Data is read twice or left out, along the living lineage, without an event that says so."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._floor = 0

    def appended(self, event: Event) -> None:
        """A rollback is what says so."""
        if isinstance(event.data, JobRolledBack):
            self._floor = event.data.step
            self.sim.training.roll_back(event.data.step)

    def stepped(self, gang: Gang) -> None:
        """No round goes back behind the newest checkpoint."""
        if gang.step <= self._floor and self._floor in self.sim.training.checkpoints:
            self.fail(f"round {gang.round} computes step {gang.step} anew, behind the checkpoint of {self._floor}")
        if gang.step in self.sim.training.checkpoints:
            self._floor = max(self._floor, gang.step)


class ReplayAgrees(Checker):
    """7. Replay of a log gives another state than the live master had; verification decides otherwise."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._made: list[Event] = []

    def verify(self, oracle: JobState, event: Event) -> None:
        """Decide again from a recorded fact, and compare what follows with what was recorded.

        Args:
            oracle: the state before the event's group, or behind it if it is a decision.
            event: the next event of the log.
        """
        if event.kind is Kind.FACT:
            if self._made:
                self.fail(f"missing behind the fact before {event.seq}: {self._made[0]}")
            self._made = turn(oracle, event)
        if not self._made:
            self.fail(f"nothing but a fact decides: {event}")
        made = self._made.pop(0)
        if made != event:
            self.fail(f"decided again it is {made}, recorded is {event}")

    def committed(self, master: "MasterProcess") -> None:
        """The live master's state is that of the log."""
        state = master.master.state if master.master is not None else self.sim.oracle
        if state.seq == self.sim.oracle.seq and digest(state) != digest(self.sim.oracle):
            self.fail(f"{master.address} has another state at seq {state.seq} than the log")

    def ended(self) -> None:
        """The fold of the whole log gives the state that decisions were made from."""
        state = JobState()
        for event in self.sim.store.events:
            fold(state, event)
        if digest(state) != digest(self.sim.oracle):
            self.fail("the fold of the log is another state than that of its turns")


class OwnFaultsStopNothing(Checker):
    """8. A fault in ftcore itself stops healthy training."""

    def stopping(self, node: "Node") -> None:
        """Where nothing but ftcore and its store broke, workers that make steps are never stopped."""
        if self.sim.options.harmless and not self.sim.injector.harms and self.sim.training.healthy(node.ranks):
            self.fail(f"{node.node} stops healthy workers")


class HealthyStandstillsAreLeftAlone(Checker):
    """9. Workers that make any progress, or will by themselves, are stopped for a hang before the ceiling."""

    def decided(self, group: Sequence[Event]) -> None:
        """A hang is only what is one, or what has shown no step for as long as the ceiling."""
        for data in (event.data for event in group):
            if isinstance(data, StandstillJudged) and data.verdict == HANG:
                self._hangs(data)

    def _hangs(self, data: StandstillJudged) -> None:
        training, timing = self.sim.training, self.sim.options.spec.timing
        gang, now = training.gangs[data.round], training.clock.now
        late = ns(LATE_S + timing.node_lease_s + timing.hang_look_s)
        if data.cause == "ceiling":
            self.sim.injector.harm("no step for as long as the ceiling")
            stood = now - max(ranks.mono for ranks in gang.members.values())
            if now - gang.stood_at <= late:  # it has only just gone on
                stood = max(stood, gang.stood_ns)
            if stood < ns(timing.hang_ceiling_s):
                self.fail(f"no step of round {data.round} for {stood / 1e9:.1f} s is beyond the ceiling")
        elif not training.ill(gang) and now - gang.ill_at > late:
            self.fail(f"healthy workers of round {data.round} hang ({data.cause}): {data.message}")


class DeparturesWait(Checker):
    """10. A node that trains leaves before another one is ready for its place, or others are launched for it twice."""

    def __init__(self, sim: "Simulation") -> None:
        super().__init__(sim)
        self._launched: dict[str, str] = {}
        self._cold: set[str] = set()
        self._waits = ""

    def appended(self, event: Event) -> None:
        """Nothing is stopped while a departure waits; it ends with nodes that are ready, and one launch was enough."""
        data, incident = event.data, str(event.incident)
        if isinstance(data, NodeJoined | NodeWarmed):
            (self._cold.add if isinstance(data, NodeJoined) and data.warms else self._cold.discard)(data.node)
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
        known = self.sim.oracle.incident
        if known is not None and known.terms.replace and not data.ready:
            self.fail(f"{data.nodes} leave though nobody is ready")
        if cold := self._cold.intersection(data.ready):
            self.fail(f"{data.nodes} leave for {cold}, who cannot start workers yet")

    def _ordered(self, data: ActionOrdered, incident: str) -> None:
        command = data.command
        if isinstance(command, StopWorkers | ParkWorkers) and incident == self._waits:
            self.fail(f"{data.effect}, while {incident} waits for others to be ready")
        elif isinstance(command, ReplaceNodes):
            if twice := self._launched.keys() & {*command.nodes}:
                self.fail(f"{data.effect} launches others for {twice}: {self._launched}")
            self._launched |= dict.fromkeys(command.nodes, data.effect) if command.keep else {}
        elif isinstance(command, DeleteNodes):
            self._launched = {node: effect for node, effect in self._launched.items() if node not in command.nodes}
        elif isinstance(command, StartWorkers) and self.sim.oracle.world is not None:
            self._cold -= {member.node for member in self.sim.oracle.world.members}


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
)
