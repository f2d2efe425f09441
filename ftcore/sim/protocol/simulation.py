"""A simulation in protocol fidelity: every message of one job, with all that may go wrong around it.

Two phases. First anything may break, and comes back. Then nothing breaks any more, what was broken is repaired, and the
job must train on, or must have ended with a reason, within a bound of virtual time. Checkers look on all the while.

House rules: everything follows from the seed. All chance is drawn from ``chance``, in the order of events; nothing is
ever taken out of a set. ``trace`` feeds the digest by which two runs of a seed are compared.
"""

import contextlib
import hashlib
import logging
import random
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence

import attrs
import msgspec
import structlog

from ftcore.engine import actions as act
from ftcore.engine.orders import Order
from ftcore.events.codec import decode_fact
from ftcore.events.envelope import Event
from ftcore.events.registry import Kind
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.security import Security
from ftcore.sim.protocol.checkers import ALL, Checker, ReplayAgrees, Violation
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.injector import FaultInjector
from ftcore.sim.protocol.log import SimArchive, SimLog, Written
from ftcore.sim.protocol.loop import Restless
from ftcore.sim.protocol.master import MasterProcess
from ftcore.sim.protocol.network import Network
from ftcore.sim.protocol.node import Node
from ftcore.sim.protocol.options import SimOptions, draw
from ftcore.sim.protocol.people import People
from ftcore.sim.protocol.platform import PlatformWorld
from ftcore.sim.protocol.store import Store
from ftcore.sim.protocol.training import Gang, JobTraining
from ftcore.sim.protocol.transport import SimTransport, Switchboard
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.model import JobState

__all__ = ["Result", "Simulation", "run_protocol"]

UPTIME_S = 1e5
"""The longest time that a host has been up."""

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


class _Acked(msgspec.Struct):
    """What an agent is told to be durable, of any frame."""

    f: str
    n: int = 0
    acked: int = 0


class Simulation:
    """One job and its world.

    Args:
        options: what it is about.
        show: given each line of the trace; None: nobody reads it.
    """

    def __init__(self, options: SimOptions, show: Callable[[str], None] | None = None) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.clock = Scheduler()
        self.oracle = JobState()
        self._show = show
        self._hash = hashlib.blake2b(digest_size=16)
        self._lives = self._pids = 0
        self.masters: dict[str, MasterProcess] = {}
        self.checkers = [make(self) for make in ALL]
        self.security = Security(token=options.token)
        self.archive = SimArchive()
        self._violation = ""
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._told: dict[tuple[str, str], dict[int, bytes]] = {}
        skew = ns(options.skew_s)
        count = options.spec.nodes_max + options.standing_by + options.spares
        behind = (f"s{n % options.switches}" if options.switches else "" for n in range(count))
        self.hosts = [
            SimMachine(f"host{n}", self.chance.randint(-skew, skew), self.chance.randint(0, ns(UPTIME_S)), switch)
            for n, switch in enumerate(behind)
        ]
        self.bad_switches: list[str] = []
        self.net = Network(self.clock, self.chance, options.delay_s)
        self.store = Store(self.clock, self.net, self.chance, options.spec.timing.master_lease_s, options.ambiguous)
        self.training = JobTraining(
            self.clock,
            self.net,
            self.chance,
            step_s=options.step_s,
            total=options.total,
            every=options.checkpoint_every,
            give_up_s=options.give_up_s,
            poison=self.chance.randint(1, 30) if "poison" in options.faults else 0,
            stepped=self._stepped,
        )
        self.board = Switchboard(self.net, self.chance, options.twice, self._sent, self._heard)
        self.people = People(self, self.chance)
        self.injector = FaultInjector(self)
        self.platform = PlatformWorld(self)
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

    def crashed(self, where: str, error: BaseException) -> None:
        """An exception of production code that nobody took."""
        if not self._violation:
            trace = "".join(traceback.format_exception(error))
            self.clock.stops = True
            self._violation = f"Crash: {where}: {type(error).__name__}: {error}\n{trace}"

    def scratch(self) -> str:
        """A directory for files that production reads by their path."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="ftcore-sim-")
        return self._scratch.name

    def address_of(self, host: str) -> str:
        """At which address others reach a host."""
        return f"10.0.0.{1 + next(n for n, one in enumerate(self.hosts) if one.name == host)}"

    def log_of(
        self, process: Process, writes: Written = lambda batch: True, wrote: Written = lambda batch: True
    ) -> SimLog:
        """The log as a process has it."""
        timing = self.options.spec.timing
        return SimLog(
            self.store,
            process,
            self.chance,
            lease_s=timing.master_lease_s,
            renew_s=timing.master_renew_s,
            writes=writes,
            wrote=wrote,
        )

    def transport_of(self, process: Process) -> SimTransport:
        """How a process reaches others."""
        return SimTransport(self.board, process)

    def end_later(self, process: Process, within_s: float) -> None:
        """A process is ended if it has not gone by then."""
        self.clock.after(ns(within_s), process.kill)

    def warms_in_s(self) -> float | None:
        """Seconds until an agent's process can fork workers; None: it never can, until it is told to start some."""
        share = self._warming.random()
        return None if share < 0.05 else self._warming.uniform(0.0, 8.0)

    def next_pid(self) -> int:
        """A number for the next process."""
        self._pids += 1
        return self._pids

    def living_masters(self) -> list[MasterProcess]:
        """All processes that want the master role or have it."""
        return [master for master in self.masters.values() if master.alive]

    def put_up_candidate(self, host: SimMachine, silent: int | None) -> None:
        """An agent wants a candidate on its host, unless one is there that counts as living."""
        mine = [master for master in self.living_masters() if master.host is host]
        if any(master.candidate.pid != silent for master in mine):
            return
        address = f"master{len(self.masters)}@{host.name}"
        self.masters[address] = MasterProcess(self, host, address, standby=silent is None)
        self.trace(f"{address} is put up")

    def _stepped(self, gang: Gang) -> None:
        self.trace(f"round {gang.round} step {gang.step}")
        self._tell(lambda checker: checker.stepped(gang))
        if self._healed_at >= 0 and gang.round == self.oracle.round:
            self._steps_on += 1

    # -- what checkers see

    def _tell(self, what: Callable[[Checker], None]) -> None:
        """Tell all checkers; what one of them finds ends the simulation, and is no exception of production code."""
        try:
            for checker in self.checkers:
                what(checker)
        except Violation as violation:
            self._found(violation)

    def _found(self, violation: Violation) -> None:
        self._violation = self._violation or str(violation)
        self.clock.stops = True

    def _sent(self, process: Process, frame: bytes) -> None:
        """An agent sends a frame: its facts are remembered until they are acknowledged."""
        if isinstance(process, Node) and frame.startswith(b'{"f":"facts"'):
            found = frames.decode_from_agent(frame)
            assert isinstance(found, frames.Facts)
            for raw in found.facts:
                fact = decode_fact(bytes(raw))
                self._told.setdefault((fact.id.source, fact.id.incarnation), {})[fact.id.n] = bytes(raw)

    def _heard(self, process: Process, frame: bytes) -> None:
        """An agent hears a frame: what it is told to be durable is."""
        if not isinstance(process, Node):
            return
        found = msgspec.json.decode(frame, type=_Acked)
        if found.f not in ("ack", "orders", "welcome"):
            return
        n = max(found.n, found.acked)
        told = self._told.get((process.node, process.life), {})
        bodies = [told.pop(m) for m in sorted(told) if m <= n]
        self._catch_up()
        self._tell(lambda checker: checker.acknowledged(process.node, process.life, n, bodies))

    def obeyed(self, node: Node, order: Order, actions: act.Actions) -> None:
        """An agent got an order."""
        self.trace(f"{node.life} gets {order.effect} of term {order.term}: {len(actions)}")
        self._catch_up()
        self._tell(lambda checker: checker.obeyed(node, order, actions))

    def stopping(self, node: Node) -> None:
        """An agent stops living workers."""
        self.trace(f"{node.life} stops its workers")
        self._tell(lambda checker: checker.stopping(node))

    def writes(self, master: MasterProcess, batch: Sequence[Event]) -> bool:
        """A master has decided what follows from facts; nothing of it is durable yet. Whether it survives that."""
        self._tell(lambda checker: checker.decided(batch))
        if self.injector.dies_at_write():
            self.trace(f"{master.address} is killed before it writes {batch[0].seq}")
            return False
        return True

    def wrote(self, master: MasterProcess, batch: Sequence[Event]) -> bool:
        """A master learns that a batch is durable. Whether it survives that."""
        self._catch_up()
        if self.injector.dies_at_write():
            self.trace(f"{master.address} is killed behind its write of {batch[-1].seq}")
            return False
        self._tell(lambda checker: checker.committed(master))
        return True

    def _catch_up(self) -> None:
        """Let the oracle follow the log, group by group, deciding anew."""
        replay = next(checker for checker in self.checkers if isinstance(checker, ReplayAgrees))
        events = self.store.events
        first = self._seen
        while self._seen < len(events):
            event = events[self._seen]
            try:
                replay.verify(self.oracle, event)
            except Violation as violation:
                self._found(violation)
            self._seen += 1
            kind = "  " if event.kind is Kind.DECISION else "> "
            self.trace(f"{event.seq:5} {kind}{event.type} {event.data}")
        for event in events[first : self._seen]:
            self._tell(lambda checker, event=event: checker.appended(event))  # type: ignore[misc]

    _seen = 0

    # -- running

    def run(self) -> None:
        """Run it to its end.

        Raises:
            Violation: something happened that must never happen.
        """
        with _quiet():
            try:
                self._run()
            finally:
                self._dispose()

    def _run(self) -> None:
        self.clock.run(ns(self.options.safety_s))
        self._raise()
        self.injector.heal()
        self._healed_at = self.clock.now
        self.trace("HEALED")
        self._tend()
        until = self.clock.now + ns(self.options.bound_s)
        at_rest = False
        while not at_rest:  # what was written last may begin something new
            rests = self.clock.run(until, self._at_rest)
            self._raise()
            if not rests:
                raise Violation(f"Liveness: {self._standing()} {self.options.bound_s:g} s after all was repaired")
            self._catch_up()
            at_rest = self._at_rest()
        for checker in self.checkers:
            checker.ended()
        self._raise()

    def _dispose(self) -> None:
        """Let no task of a process live on."""
        processes = [self.people.process, *self.masters.values(), *self.platform.ever]
        for process in processes:
            process.alive = False
            process.loop.kill()
        for process in processes:
            process.loop.dispose()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _raise(self) -> None:
        if self._violation:
            raise Violation(self._violation)

    def _standing(self) -> str:
        state = self.oracle
        incident = f", {state.incident.id} {state.incident.phase}" if state.incident is not None else ""
        agents = ", ".join(f"{node.life} {node.phase}" for node in self.platform.nodes())
        return f"the job is {state.phase} in round {state.round}{incident}; agents: {agents or 'none'};"

    def _tend(self) -> None:
        """An operator lets go on what people stopped."""
        state = self.oracle
        if state.phase == "paused" or state.held or state.phase is JobPhase.STUCK:
            self.people.command("resume")
        self.clock.after(ns(15.0), self._tend)

    def _at_rest(self) -> bool:
        if self.clock.turns > TURNS_MAX:
            raise Violation(f"Liveness: {TURNS_MAX} things were done by {self.clock.now / 1e9:g} s")
        if self.oracle.phase in ENDED:
            return not self.platform.nodes()
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
            faults=self.injector.struck,
        )


def run_protocol(
    seed: int,
    *,
    nodes: int | None = None,
    options: SimOptions | None = None,
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
    except Restless as error:
        return sim.result(f"Liveness: {error}")
    except Exception as error:
        return sim.result(f"Crash: {type(error).__name__}: {error}\n{traceback.format_exc()}")
    return sim.result()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Production code logs nothing: what its processes say is no word of this one."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
