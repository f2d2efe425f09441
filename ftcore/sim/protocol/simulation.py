"""Protocol simulation: every message of one job, with fault injection.

In the first phase faults happen. In the second phase everything is repaired, no further faults happen, and the job must
train, or end with a reason, within a bound of virtual time. Checkers verify invariants throughout.

Everything is determined by the seed: randomness comes from ``chance`` in the order of events, and sets are never
iterated. ``trace`` feeds the digest by which two runs of a seed are compared.
"""

import asyncio
import contextlib
import gc
import logging
import traceback
from collections.abc import Callable, Iterator, Sequence

import attrs
import msgspec
import structlog

from ftcore.engine import actions as act
from ftcore.engine.orders import Order
from ftcore.events.codec import decode_fact
from ftcore.events.envelope import Event, Fact
from ftcore.runtime.wire import frames
from ftcore.sim.protocol.checker import Checker, Violation
from ftcore.sim.protocol.checkers import ALL, ReplayAgrees, hooks
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.injector import FaultInjector
from ftcore.sim.protocol.loop import Restless
from ftcore.sim.protocol.master import MasterProcess
from ftcore.sim.protocol.node import Node
from ftcore.sim.protocol.options import SimOptions, draw
from ftcore.sim.protocol.people import People
from ftcore.sim.protocol.platform import PlatformWorld
from ftcore.sim.protocol.saved_state import LoadedRound
from ftcore.sim.protocol.training import Gang, NodeWorkers
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.model import JobState

__all__ = ["Result", "Simulation", "collect", "collecting_between", "run_protocol"]

STEPS_ON = 3
"""Steps after the repair that prove that the job trains."""

TURNS_MAX = 3_000_000
"""Most executed queue entries of a simulation; more count as an endless loop."""


@attrs.frozen(kw_only=True)
class Result:
    """Result of a simulation.

    Args:
        seed: its seed.
        violation: the violated invariant; empty if none.
        digest: digest of the trace; equal for equal seeds.
        outcome: how the job ended, or ``trains``.
        reason: why it ended.
        virtual_s: virtual seconds.
        events: events in the log.
        frames: delivered frames.
        incidents: opened incidents.
        rounds: planned rounds.
        terms: terms of masters.
        faults: injected faults.
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
    """Acknowledgements in a frame to an agent."""

    f: str
    n: int = 0
    acked: int = 0


class Simulation(Environment):
    """Simulation of one job and its environment.

    Args:
        options: the options.
        show: called with each line of the trace; None: no output.
    """

    def __init__(self, options: SimOptions, show: Callable[[str], None] | None = None) -> None:
        super().__init__(options, show)
        self.masters: dict[str, MasterProcess] = {}
        self.checkers = [make(self) for make in ALL]
        self._hooks = hooks(self.checkers)
        self._replay = next(checker for checker in self.checkers if isinstance(checker, ReplayAgrees))
        self._unacknowledged: dict[tuple[str, str], dict[int, Fact]] = {}
        self.platform = PlatformWorld(self)
        self.people = People(self, self.living_masters, self.platform.nodes)
        self.injector = FaultInjector(self, self.platform, self.people, self.living_masters)
        self.injector.begin()
        self.platform.begin()
        self._healed_at = -1
        self._steps_on = 0

    # -- its processes

    def living_masters(self) -> list[MasterProcess]:
        """All running candidates and masters."""
        return [master for master in self.masters.values() if master.alive]

    def start_candidate(self, host: SimMachine, silent: int | None) -> None:
        """See ``Environment``."""
        mine = [master for master in self.living_masters() if master.host is host]
        if any(master.candidate.pid != silent for master in mine):
            return
        address = f"master{len(self.masters)}@{host.name}"
        self.masters[address] = MasterProcess(self, host, address, self.platform.handle, standby=silent is None)
        self.trace(f"{address} starts")

    def stepped(self, gang: Gang) -> None:
        """See ``Environment``."""
        self.trace(f"round {gang.round} step {gang.step}")
        self._report(Checker.stepped, gang)
        if self._healed_at >= 0 and gang.round == self.oracle.rounds.newest:
            self._steps_on += 1

    def loaded(self, gang: Gang, done: LoadedRound) -> None:
        """See ``Environment``."""
        self._catch_up()
        self._report(Checker.loaded, gang, done)
        if done.failed:
            self.training.give_up(gang)
        else:
            self.training.begin(gang, done.step)

    # -- reports to checkers

    def _report(self, hook: Callable[..., None], *args: object) -> None:
        """Call a method of all checkers that override it; a violation ends the simulation, without an exception in
        production code.
        """
        try:
            for overridden in self._hooks[hook.__name__]:
                overridden(*args)
        except Violation as violation:
            self._record(violation)

    def _record(self, violation: Violation) -> None:
        self._violation = self._violation or str(violation)
        self.clock.stops = True

    def sent(self, process: Process, frame: bytes) -> None:
        """See ``Environment``: the facts of an agent are kept until they are acknowledged."""
        if isinstance(process, Node) and frame.startswith(b'{"f":"facts"'):
            found = frames.decode_from_agent(frame)
            assert isinstance(found, frames.Facts)
            for raw in found.facts:
                fact = decode_fact(bytes(raw))
                self._unacknowledged.setdefault((fact.id.source, fact.id.incarnation), {})[fact.id.n] = fact

    def heard(self, process: Process, frame: bytes) -> None:
        """See ``Environment``: facts that an agent's master acknowledges are durable."""
        if not isinstance(process, Node):
            return
        found = msgspec.json.decode(frame, type=_Acked)
        if found.f not in ("ack", "orders", "welcome"):
            return
        n = max(found.n, found.acked)
        sent = self._unacknowledged.get((process.node, process.life), {})
        facts = [sent.pop(m) for m in sorted(sent) if m <= n]
        self._catch_up()
        self._report(Checker.acknowledged, facts)

    def obeyed(self, node: str, incarnation: str, order: Order, actions: act.Actions) -> None:
        """See ``Environment``."""
        self.trace(f"{incarnation} gets {order.effect} of term {order.term}: {len(actions)}")
        self._catch_up()
        self._report(Checker.obeyed, node, incarnation, order, actions)

    def stopping(self, incarnation: str, ranks: NodeWorkers) -> None:
        """See ``Environment``."""
        self.trace(f"{incarnation} stops its workers")
        self._report(Checker.stopping, ranks)

    def writes(self, address: str, batch: Sequence[Event]) -> bool:
        """See ``Environment``."""
        self._report(Checker.decided, batch)
        if self.conditions.dies_at_write():
            self.trace(f"{address} is killed before writing {batch[0].seq}")
            return False
        return True

    def wrote(self, address: str, batch: Sequence[Event], state: JobState) -> bool:
        """See ``Environment``."""
        self._catch_up()
        if self.conditions.dies_at_write():
            self.trace(f"{address} is killed after writing {batch[-1].seq}")
            return False
        self._report(Checker.committed, address, state)
        return True

    def _catch_up(self) -> None:
        """Advance the oracle along the log, repeating the decisions of each group."""
        events = self.store.events
        first = self._replayed
        while self._replayed < len(events):
            event = events[self._replayed]
            try:
                self._replay.verify(self.oracle, event)
            except Violation as violation:
                self._record(violation)
            self._replayed += 1
            self.trace_event(event)
        for event in events[first : self._replayed]:
            self._report(Checker.appended, event)

    _replayed = 0

    # -- running

    def run(self) -> None:
        """Run the simulation.

        Raises:
            Violation: an invariant was violated.
        """
        with _quiet():
            try:
                self._run()
            finally:
                self.clock.running = None
                asyncio._set_running_loop(None)
                self._dispose()

    def _run(self) -> None:
        self.clock.run(ns(self.options.safety_s))
        self._raise()
        self.injector.heal()
        self._healed_at = self.clock.now
        self.trace("HEALED")
        self._resume_job()
        until = self.clock.now + ns(self.options.bound_s)
        at_rest = False
        while not at_rest:  # the last events may trigger further work
            rests = self.clock.run(until, self._at_rest)
            self._raise()
            if not rests:
                raise Violation(f"Liveness: {self._status()} {self.options.bound_s:g} s after all was repaired")
            self._catch_up()
            at_rest = self._at_rest()
        for checker in self.checkers:
            checker.ended()
        self._raise()

    def _dispose(self) -> None:
        """End all tasks of all processes."""
        processes = [self.people.process, *self.masters.values(), *self.platform.all_nodes]
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

    def _status(self) -> str:
        state = self.oracle
        incident = f", {state.incident.id} {state.incident.phase}" if state.incident is not None else ""
        agents = ", ".join(f"{node.life} {node.phase}" for node in self.platform.nodes())
        return f"the job is {state.phase} in round {state.rounds.newest}{incident}; agents: {agents or 'none'};"

    def _resume_job(self) -> None:
        """Resume a stuck job, and one that an operator has paused, periodically."""
        state, pause = self.oracle, self.oracle.requests.paused_for
        by_policy = state.requests.resume is not None or (pause is not None and pause.who == "step_pause")
        if (state.phase == "paused" and not by_policy) or state.requests.held or state.phase is JobPhase.STUCK:
            self.people.command("resume")
        self.clock.after(ns(15.0), self._resume_job)

    def _at_rest(self) -> bool:
        if self.clock.turns > TURNS_MAX:
            raise Violation(f"Liveness: {TURNS_MAX} queue entries executed by {self.clock.now / 1e9:g} s")
        if self.oracle.phase in ENDED:
            return not self.platform.nodes()
        going = self._steps_on >= STEPS_ON and self.oracle.phase is JobPhase.RUNNING and self.oracle.incident is None
        return going and self.options.total > 1000

    def result(self, violation: str = "") -> Result:
        """The result so far."""
        state = self.oracle
        for body in self.store.bodies:
            self._hash.update(body)
        return Result(
            seed=self.options.seed,
            violation=violation,
            digest=self._hash.hexdigest(),
            outcome=state.ending.outcome if state.ending is not None else "trains",
            reason=state.reason(),
            virtual_s=self.clock.now / 1e9,
            events=len(self.store.events),
            frames=self.net.frames,
            incidents=state.incidents,
            rounds=state.rounds.newest,
            terms=self.store.contents.term,
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
        seed: seed of the options and all randomness.
        nodes: nodes of the job, up to about 50; None: drawn from the seed.
        options: options to use instead of those drawn from the seed.
        show: called with each line of the trace.

    Returns:
        The result; a violation is returned, not raised.
    """
    try:
        return _run(options or draw(seed, nodes), show)
    finally:
        collect()


def _run(options: SimOptions, show: Callable[[str], None] | None) -> Result:
    sim = Simulation(options, show)
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
    """Context manager: suppress the log lines of production code."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def collecting_between() -> Iterator[None]:
    """Context manager for many simulations: garbage is collected only by ``collect``, between them.

    A simulation is garbage in cycles when it has ended; before, nearly all objects end with their last reference. So
    each object is examined once, while it is in the processor's cache.
    """
    enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def collect() -> None:
    """Collect what the last simulation has left, within ``collecting_between``; without it, do nothing."""
    if not gc.isenabled():
        gc.collect(0)
