"""A simulation in protocol fidelity: every message of one job, with all that may go wrong around it.

Two phases. First anything may break, and comes back. Then nothing breaks any more, what was broken is repaired, and the
job must train on, or must have ended with a reason, within a bound of virtual time. Checkers look on all the while.

House rules: everything follows from the seed. All chance is drawn from ``chance``, in the order of events; nothing is
ever taken out of a set. ``trace`` feeds the digest by which two runs of a seed are compared.
"""

import hashlib
import random
import traceback
from collections.abc import Callable
from typing import Any

import attrs

from ftcore.engine import actions as act
from ftcore.engine.orders import Order, Slice
from ftcore.events.envelope import Event
from ftcore.events.job import CheckpointCommitted
from ftcore.events.registry import Kind
from ftcore.sim.agents import SimAgent
from ftcore.sim.checkers import ALL, ReplayAgrees, Violation
from ftcore.sim.clock import Scheduler, ns
from ftcore.sim.hosts import Host, Process
from ftcore.sim.masters import SimMaster
from ftcore.sim.net import Network
from ftcore.sim.options import Options, draw
from ftcore.sim.platform import Platform
from ftcore.sim.store import Store
from ftcore.sim.training import Gang, Training
from ftcore.sim.trouble import Trouble
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.model import JobState

__all__ = ["Result", "Simulation", "run_protocol"]

EPOCH_NS = 1_700_000_000_000_000_000
STEPS_ON = 3
"""So many steps after all was repaired show that the job trains on."""

TURNS_MAX = 3_000_000
"""Things done in one simulation; more is a wheel that does not come to rest."""


@attrs.frozen(kw_only=True)
class Result:
    """What came of a simulation.

    Args:
        seed: its seed.
        violation: what must not have happened, or empty.
        digest: of all that happened; equal for equal seeds.
        outcome: how the job ended, or ``trains``.
        reason: why it ended.
        virtual_s: virtual seconds that passed.
        events: events in the log.
        frames: frames that arrived.
        incidents: incidents that were opened.
        rounds: rounds that were planned.
        terms: terms of masters.
        faults: faults that struck.
    """

    seed: int
    violation: str
    digest: str
    outcome: str
    reason: str
    virtual_s: float
    events: int
    frames: int
    incidents: int
    rounds: int
    terms: int
    faults: int


class Simulation:
    """One job and its world.

    Args:
        options: what it is about.
        show: given each line of the trace; None: nobody reads it.
    """

    def __init__(self, options: Options, show: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.clock = Scheduler()
        self.oracle = JobState()
        self._show = show
        self._hash = hashlib.blake2b(digest_size=16)
        self._lives = self._pids = 0
        self.masters: dict[str, SimMaster] = {}
        self.checkers = [make(self) for make in ALL]
        skew = ns(options.skew_s)
        count = options.spec.nodes_max + options.standing_by + options.spares
        behind = (f"s{n % options.switches}" if options.switches else "" for n in range(count))
        self.hosts = [Host(f"host{n}", self.chance.randint(-skew, skew), switch) for n, switch in enumerate(behind)]
        self.bad_switches: list[str] = []
        self.net = Network(self.clock, self.chance, options.delay_s)
        self.store = Store(self.clock, self.net, self.chance, options.spec.timing.master_lease_s, options.ambiguous)
        self.training = Training(
            self.clock,
            self.net,
            self.chance,
            step_s=options.step_s,
            total=options.total,
            every=options.checkpoint_every,
            give_up_s=options.give_up_s,
            poison=self.chance.randint(1, 30) if "poison" in options.faults else 0,
            saved=self._saved,
            stepped=self._stepped,
        )
        self.trouble = Trouble(self)
        self.platform = Platform(self)
        self._warming = random.Random(f"warm {options.seed}")  # a stream of its own, as that of the job's shape
        self._healed_at = -1
        self._steps_on = 0

    # -- what its parts ask

    def trace(self, text: str) -> None:
        """Note what happened."""
        line = f"{self.clock.now / 1e9:10.4f} {text}"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    def wall(self, host: Host) -> int:
        """The host's wall clock, in nanoseconds since the epoch."""
        return EPOCH_NS + self.clock.now + host.skew_ns

    def next_life(self) -> int:
        """A number for the next agent's life."""
        self._lives += 1
        return self._lives

    def warms_in_s(self) -> float | None:
        """Seconds until an agent's process can fork workers; None: it never can, until it is told to start some."""
        share = self._warming.random()
        return None if share < 0.05 else self._warming.uniform(0.0, 8.0)

    def next_pid(self) -> int:
        """A number for the next process."""
        self._pids += 1
        return self._pids

    def living_masters(self) -> list[SimMaster]:
        """All processes that want the master role or have it."""
        return [master for master in self.masters.values() if master.alive]

    def put_up_candidate(self, host: Host, silent: int | None) -> None:
        """An agent wants a candidate on its host, unless one is there that counts as living."""
        mine = [master for master in self.living_masters() if master.host is host]
        if any(master.candidate.pid != silent for master in mine):
            return
        address = f"master{len(self.masters)}@{host.name}"
        self.masters[address] = SimMaster(self, host, address, standby=silent is None)
        self.trace(f"{address} is put up")

    def directed(self, part: Slice) -> int | None:
        """The step that workers are told to resume from, if they are told one."""
        told: int | None = getattr(part, "resume_step", None)
        return told

    def _saved(self, process: Process, round_: int, step: int) -> None:
        if isinstance(process, SimAgent) and process.alive:
            process.tell(CheckpointCommitted(round=round_, step=step))

    def _stepped(self, gang: Gang) -> None:
        self.trace(f"round {gang.round} step {gang.step}")
        for checker in self.checkers:
            checker.stepped(gang)
        if self._healed_at >= 0 and gang.round == self.oracle.round:
            self._steps_on += 1

    # -- what checkers see

    def acknowledged(self, node: str, incarnation: str, n: int, bodies: list[bytes]) -> None:
        """An agent was told that facts are durable."""
        self._catch_up()
        for checker in self.checkers:
            checker.acknowledged(node, incarnation, n, bodies)

    def obeyed(self, agent: SimAgent, order: Order, actions: act.Actions) -> None:
        """An agent got an order."""
        self.trace(f"{agent.core.incarnation} gets {order.effect} of term {order.term}: {len(actions)}")
        self._catch_up()
        for checker in self.checkers:
            checker.obeyed(agent, order, actions)

    def stopping(self, agent: SimAgent, why: str) -> None:
        """An agent stops living workers."""
        self.trace(f"{agent.core.incarnation} stops its workers: {why}")
        for checker in self.checkers:
            checker.stopping(agent, why)

    def decided(self, group: list[Event]) -> None:
        """A master has decided what follows from a fact; nothing of it is durable yet."""
        for checker in self.checkers:
            checker.decided(group)

    def committed(self, master: SimMaster, batch: list[Any]) -> None:
        """A master's batch is durable."""
        self._catch_up()
        for checker in self.checkers:
            checker.committed(master)

    def _catch_up(self) -> None:
        """Let the oracle follow the log, group by group, deciding anew."""
        replay = next(checker for checker in self.checkers if isinstance(checker, ReplayAgrees))
        events = self.store.events
        first = self._seen
        while self._seen < len(events):
            event = events[self._seen]
            replay.verify(self.oracle, event)
            self._seen += 1
            kind = "  " if event.kind is Kind.DECISION else "> "
            self.trace(f"{event.seq:5} {kind}{event.type} {event.data}")
        for event in events[first : self._seen]:
            for checker in self.checkers:
                checker.appended(event)

    _seen = 0

    # -- running

    def run(self) -> None:
        """Run it to its end.

        Raises:
            Violation: something happened that must never happen.
        """
        self.clock.run(ns(self.options.safety_s), self._too_long)
        self.trouble.heal()
        self._healed_at = self.clock.now
        self.trace("HEALED")
        self._tend()
        until = self.clock.now + ns(self.options.bound_s)
        at_rest = False
        while not at_rest:  # what was written last may begin something new
            if not self.clock.run(until, self._at_rest):
                raise Violation(f"Liveness: {self._standing()} {self.options.bound_s:g} s after all was repaired")
            self._catch_up()
            at_rest = self._at_rest()
        for checker in self.checkers:
            checker.ended()

    def _standing(self) -> str:
        state = self.oracle
        incident = f", {state.incident.id} {state.incident.phase}" if state.incident is not None else ""
        agents = ", ".join(f"{a.core.incarnation} {a.core.phase}" for a in self.platform.agents())
        return f"the job is {state.phase} in round {state.round}{incident}; agents: {agents or 'none'};"

    def _tend(self) -> None:
        """An operator lets go on what people stopped."""
        state = self.oracle
        if state.phase == "paused" or state.held or state.phase is JobPhase.STUCK:
            self.trace(f"PEOPLE {self.trouble.command('resume')}")
        self.clock.after(ns(15.0), self._tend)

    def _too_long(self) -> bool:
        if self.clock.turns > TURNS_MAX:
            raise Violation(f"Liveness: {TURNS_MAX} things were done by {self.clock.now / 1e9:g} s")
        return False

    def _at_rest(self) -> bool:
        self._too_long()
        if self.oracle.phase in ENDED:
            return not self.platform.agents()
        going = self._steps_on >= STEPS_ON and self.oracle.phase is JobPhase.RUNNING and self.oracle.incident is None
        return going and self.options.total > 1000

    def result(self, violation: str = "") -> Result:
        """What came of it so far."""
        state = self.oracle
        for body in self.store.bodies:
            self._hash.update(body)
        return Result(
            seed=self.options.seed,
            violation=violation,
            digest=self._hash.hexdigest(),
            outcome=state.outcome or "trains",
            reason=state.reason,
            virtual_s=self.clock.now / 1e9,
            events=len(self.store.events),
            frames=self.net.frames,
            incidents=state.incidents,
            rounds=state.round,
            terms=self.store.term,
            faults=self.trouble.struck,
        )


def run_protocol(
    seed: int,
    *,
    nodes: int | None = None,
    options: Options | None = None,
    show: Callable[[str], None] | None = None,
) -> Result:
    """Simulate one job, message by message.

    Args:
        seed: where the options and all chance come from.
        nodes: nodes of the job, up to about 50; None: drawn from the seed.
        options: all of it, instead of what the seed draws.
        show: given each line of the trace.

    Returns:
        What came of it; a violation is in there, not raised.
    """
    sim = Simulation(options or draw(seed, nodes), show)
    try:
        sim.run()
    except Violation as violation:
        return sim.result(str(violation))
    except Exception as error:
        return sim.result(f"Crash: {type(error).__name__}: {error}\n{traceback.format_exc()}")
    return sim.result()
