"""Environment of a simulation: what its processes share, and what they report.

A process knows only the environment; ``simulation.Simulation`` makes the processes and receives the reports.
"""

import hashlib
import random
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ftcore.engine import actions as act
from ftcore.engine.orders import Order
from ftcore.events.envelope import Event
from ftcore.events.registry import Kind
from ftcore.runtime.wire.security import Security
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.conditions import Conditions
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.log import SimArchive, SimLog, Written
from ftcore.sim.protocol.network import Network
from ftcore.sim.protocol.options import SimOptions
from ftcore.sim.protocol.saved_state import LoadedRound, SimSavedState
from ftcore.sim.protocol.store import Store
from ftcore.sim.protocol.training import Gang, JobTraining, NodeWorkers
from ftcore.sim.protocol.transport import SimTransport, Switchboard
from ftcore.states.model import JobState

UPTIME_S = 1e5
"""Longest uptime of a host at the start, in seconds."""


class Environment(ABC):
    """Time, chance, hosts, network, store and training of one job.

    Args:
        options: the options.
        show: called with each line of the trace; None: no output.
    """

    def __init__(self, options: SimOptions, show: Callable[[str], None] | None) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.clock = Scheduler()
        self.oracle = JobState()
        self._show = show
        self._hash = hashlib.blake2b(digest_size=16)
        self._pids = 0
        self.security = Security(token=options.token)
        self.archive = SimArchive()
        self._violation = ""
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        skew = ns(options.skew_s)
        count = options.spec.nodes_max + options.standing_by + options.spares
        switches = (f"s{n % options.switches}" if options.switches else "" for n in range(count))
        self.hosts = [
            SimMachine(f"host{n}", self.chance.randint(-skew, skew), self.chance.randint(0, ns(UPTIME_S)), switch)
            for n, switch in enumerate(switches)
        ]
        self._addresses = {host.name: f"10.0.0.{1 + n}" for n, host in enumerate(self.hosts)}
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
            stepped=self.stepped,
        )
        self.saved: SimSavedState | None = None
        if options.layout:
            self.training.state = self.saved = SimSavedState(
                self.clock,
                random.Random(f"state {options.seed}"),  # a separate stream, as for the job's shape
                layout=options.layout,
                step_s=options.step_s,
                every=options.checkpoint_every if options.spec.checkpoints else 0,
                trace=self.trace,
                loaded=self.loaded,
            )
        self.board = Switchboard(self.net, self.chance, options.twice, self.sent, self.heard)
        self.conditions = Conditions(self.clock, self.chance, self.training, options.faults)
        # Separate streams, as for the job's shape.
        self.resizes = random.Random(f"resize {options.seed}").random() < 0.5
        self._warming = random.Random(f"warm {options.seed}")

    def trace(self, text: str) -> None:
        """Add a line to the trace."""
        line = f"{self.clock.now / 1e9:10.4f} {text}"
        self._hash.update(line.encode())
        if self._show is not None:
            self._show(line)

    def trace_event(self, event: Event) -> None:
        """Add an event of the log to the trace; its content is part of the digest with the log's."""
        if self._show is not None:
            kind = "  " if event.kind is Kind.DECISION else "> "
            self._show(f"{self.clock.now / 1e9:10.4f} {event.seq:5} {kind}{event.type} {event.data}")

    def crashed(self, where: str, error: BaseException) -> None:
        """Handle an unhandled exception of production code."""
        if not self._violation:
            trace = "".join(traceback.format_exception(error))
            self.clock.stops = True
            self._violation = f"Crash: {where}: {type(error).__name__}: {error}\n{trace}"

    def scratch(self) -> str:
        """A temporary directory for files that production code reads by path."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="ftcore-sim-")
        return self._scratch.name

    def address_of(self, host: str) -> str:
        """The address of a host."""
        return self._addresses[host]

    def log_of(
        self, process: Process, writes: Written = lambda batch: True, wrote: Written = lambda batch: True
    ) -> SimLog:
        """The log client of a process."""
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
        """The transport of a process."""
        return SimTransport(self.board, process)

    def end_later(self, process: Process, within_s: float) -> None:
        """Kill a process after ``within_s`` seconds."""
        self.clock.after(ns(within_s), process.kill)

    def warms_in_s(self) -> float | None:
        """Seconds until an agent can start workers warm; None: never before the first start."""
        share = self._warming.random()
        return None if share < 0.05 else self._warming.uniform(0.0, 8.0)

    def next_pid(self) -> int:
        """A new process ID."""
        self._pids += 1
        return self._pids

    def host_of(self, node: str) -> SimMachine | None:
        """The host on which a node's agent runs; None if none runs."""
        return next((host for host in self.hosts if any(process.name == node for process in host.processes)), None)

    # -- what its processes report

    @abstractmethod
    def start_candidate(self, host: SimMachine, silent: int | None) -> None:
        """Start a candidate on a host at an agent's request, unless a live one runs there.

        Args:
            host: the agent's host.
            silent: process ID of the host's candidate that does not answer; None: the agent found no candidate.
        """

    @abstractmethod
    def stepped(self, gang: Gang) -> None:
        """A round has completed a step."""

    @abstractmethod
    def loaded(self, gang: Gang, done: LoadedRound) -> None:
        """A round has loaded its registered state, or could not."""

    @abstractmethod
    def sent(self, process: Process, frame: bytes) -> None:
        """A client sends a frame."""

    @abstractmethod
    def heard(self, process: Process, frame: bytes) -> None:
        """A client receives a frame."""

    @abstractmethod
    def obeyed(self, node: str, incarnation: str, order: Order, actions: act.Actions) -> None:
        """An agent has received an order, and takes these actions."""

    @abstractmethod
    def stopping(self, incarnation: str, ranks: NodeWorkers) -> None:
        """An agent stops running workers."""

    @abstractmethod
    def writes(self, address: str, batch: Sequence[Event]) -> bool:
        """A master has made decisions, not yet durable; returns whether it survives."""

    @abstractmethod
    def wrote(self, address: str, batch: Sequence[Event], state: JobState) -> bool:
        """A master learns that a batch is durable; returns whether it survives.

        Args:
            address: its address.
            batch: the events.
            state: its state, which includes exactly them.
        """
