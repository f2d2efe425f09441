"""Fault injector: faults of the kinds in the options, at times and places drawn from the seed.

What may legitimately stop training is recorded, see ``Conditions.harms``.
"""

import functools
import random
from collections.abc import Callable, Sequence
from typing import Final

from ftcore.faults.scan import Hit
from ftcore.runtime.master.service import Service
from ftcore.sim.evidence import KINDS
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.hosts import Process
from ftcore.sim.protocol.master import MasterProcess
from ftcore.sim.protocol.node import Node
from ftcore.sim.protocol.options import AGENT_TASK, MAINTENANCE, MASTER_TASK, SPIKE
from ftcore.sim.protocol.people import People
from ftcore.sim.protocol.platform import PlatformWorld
from ftcore.sim.protocol.standing import hang, pause
from ftcore.sim.protocol.store import HOST as STORE
from ftcore.sim.protocol.training import SIGKILL, NodeWorkers
from ftcore.sim.protocol.transport import SimListener
from ftcore.sim.trace import TraceFault

PAUSE_S = 5.0
"""Mean seconds between two healthy standstills, if enabled."""

READERS: Final = (Service._read.__qualname__, SimListener._served.__qualname__)
"""The master's tasks that serve a node. While one stalls, the node is as silent as behind a cut link."""


class FaultInjector:
    """Injects all faults.

    Args:
        sim: the environment.
        platform: the platform of the nodes.
        people: the operators and foreign clients.
        masters: returns the running candidates and masters.

    Attributes:
        struck: number of injected faults.
    """

    def __init__(
        self, sim: Environment, platform: PlatformWorld, people: People, masters: Callable[[], list[MasterProcess]]
    ) -> None:
        self.sim, self.chance, self.options = sim, sim.chance, sim.options
        self.harm = sim.conditions.harm
        self.struck = 0
        self._platform, self._masters = platform, masters
        self._kinds: dict[str, Callable[[], str]] = {
            "master_kill": lambda: self._on_master(self._kill),
            "master_freeze": lambda: self._on_master(self._freeze, 15.0),
            "master_dies_between": lambda: self._on_master(self._between, 15.0),
            MASTER_TASK: lambda: self._on_master(self._stall_task, 15.0),
            AGENT_TASK: lambda: self._on_node(self._stall_task, 10.0),
            "store_full": self._store_full,
            "archive_away": self._archive_away,
            "socket_removed": self._socket_removed,
            "stranger": people.stranger,
            "clock_stepped": self._clock_stepped,
            "signal": self._signal,
            "known_line": self._known_line,
            "agent_dies_between": lambda: self._on_node(self._between, 10.0),
            "stall": self._stall,
            "store_of_round_lost": self._store_of_round_lost,
            "store_down": self._store_down,
            "store_slow": self._store_slow,
            "stream_break": self._stream_break,
            "disk_full": self._disk_full,
            "worker_kill": lambda: self._on_ranks("killed", self._end(SIGKILL)),
            "worker_error": lambda: self._on_ranks("error", self._end(1)),
            "worker_hang": lambda: self._on_ranks("hang", self._hang),
            "agent_kill": lambda: self._on_node(self._kill),
            "agent_freeze": lambda: self._on_node(self._freeze, 10.0),
            "host_crash": self._host_crash,
            "host_freeze": self._host_freeze,
            "partition": self._partition,
            "one_way": self._one_way,
            "store_cut": self._store_cut,
            "bad_host": self._bad_host,
            "bad_switch": self._bad_switch,
            "preemption": self._preemption,
            MAINTENANCE: self._maintenance,
            SPIKE: self._loss_spike,
            "operator_stop": people.stop,
            "operator": people.operate,
            "departure": people.send_away,
            **(sim.saved.faults() if sim.saved is not None else {}),
        }
        self._pauses = random.Random(f"pauses {self.options.seed}")  # a stream of its own
        self._drawn = [name for name in self.options.faults if name in self._kinds]

    def begin(self) -> None:
        """Schedule the first fault."""
        if self.options.pauses:
            self._pause()
        if self._drawn:
            self._next()

    def heal(self) -> None:
        """Stop injecting faults, and repair everything."""
        sim = self.sim
        sim.conditions.on = False
        sim.net.heal()
        sim.store.down_until = min(sim.store.down_until, sim.clock.now)
        sim.store.slow, sim.store.ambiguous, sim.store.full, sim.archive.broken = 1.0, 0.0, False, False
        sim.training.poison = 0
        sim.bad_switches.clear()
        if sim.saved is not None and not sim.options.storage_stays:
            sim.saved.repair()
        for host in sim.hosts:
            host.up, host.bad, host.disk_full, host.stalls = True, False, False, False

    def _next(self) -> None:
        self.sim.clock.after(ns(self.chance.expovariate(1 / self.options.every_s)), self._strike)

    def _strike(self) -> None:
        if not self.sim.conditions.on:
            return
        self.struck += 1
        name = self.chance.choice(self._drawn)
        self.sim.trace(f"FAULT {name}: {self._kinds[name]() or 'no target'}")
        self._next()

    def _duration(self, longest_s: float) -> int:
        return ns(self.chance.uniform(0.05, 1.0) ** 2 * longest_s)

    def _node(self) -> Node | None:
        """A random node; None if there is none."""
        nodes = self._platform.nodes()
        return self.chance.choice(nodes) if nodes else None

    # -- faults of ftcore and its store

    def _on_master(self, act: Callable[..., str], *arguments: float) -> str:
        masters = self._masters()
        return act(self.chance.choice(masters), *arguments) if masters else ""

    def _kill(self, process: Process) -> str:
        process.kill()
        return process.name

    def _freeze(self, process: Process, longest_s: float) -> str:
        process.freeze(self._duration(longest_s))
        return process.name

    def _between(self, process: Process, longest_s: float) -> str:
        """Kill or freeze it between two of its callbacks."""
        count, frozen = self.chance.randint(1, 300), self.chance.random() < 0.4
        duration = self._duration(longest_s)
        process.loop.after_callbacks(count, (lambda: process.freeze(duration)) if frozen else process.kill)
        return f"{process.name} {'freezes' if frozen else 'is killed'} after {count} callbacks"

    def _stall_task(self, process: Process, longest_s: float) -> str:
        """Let one of its tasks make no step for some time, while the others run on."""
        names = {task: getattr(task.get_coro(), "__qualname__", "") for task in process.loop.tasks()}
        tasks = [task for task, name in names.items() if name not in READERS or not self.options.harmless]
        if not tasks:
            return ""
        task = self.chance.choice(tasks)
        process.loop.stall(task, self._duration(longest_s))
        stalled = f"{process.name}: {names[task]}"
        return self.harm(stalled) if names[task] in READERS else stalled

    def _store_full(self) -> str:
        store = self.sim.store
        store.full = not store.full
        store.used = 80 if store.full else self.chance.choice((10, 75))
        return "full" if store.full else "has room"

    def _archive_away(self) -> str:
        self.sim.archive.broken = not self.sim.archive.broken
        return "unavailable" if self.sim.archive.broken else "available"

    def _socket_removed(self) -> str:
        listeners = sorted(self.sim.board.listeners)
        if not listeners:
            return ""
        address = self.chance.choice(listeners)
        self.sim.board.listeners[address].reachable = False
        return address

    def _clock_stepped(self) -> str:
        host = self.chance.choice(self.sim.hosts)
        host.skew_ns += self.chance.choice((-1, 1)) * ns(self.chance.choice((1.0, 3600.0)))
        return f"{host.name}, skew now {host.skew_ns / 1e9:g} s"

    def _stall(self) -> str:
        """Threads of a host stall: work in executors, disk operations."""
        host = self.chance.choice(self.sim.hosts)
        host.stalls = not host.stalls
        return f"threads of {host.name} {'stall' if host.stalls else 'resume'}"

    def _store_down(self) -> str:
        self.sim.store.down_until = self.sim.clock.now + self._duration(30.0)
        return "down"

    def _store_slow(self) -> str:
        self.sim.store.slow = self.chance.choice((1.0, 30.0, 300.0))
        return f"{self.sim.store.slow:g} times slower"

    def _stream_break(self) -> str:
        streams = [stream for stream in self.sim.net.streams if stream.open]
        if streams:
            self.chance.choice(streams).close()
        return "a stream"

    def _disk_full(self) -> str:
        host = self.chance.choice(self.sim.hosts)
        host.disk_full = not host.disk_full
        return host.name

    # -- of workers and nodes

    def _on_ranks(self, what: str, act: Callable[[NodeWorkers, int], object]) -> str:
        living = self.sim.training.living()
        if not living:
            return ""
        ranks = self.chance.choice(living)
        act(ranks, self.chance.randrange(ranks.part.slots))
        return self.harm(f"{what} of round {ranks.round} on {ranks.process.name}")

    def _end(self, code: int) -> Callable[[NodeWorkers, int], None]:
        return lambda ranks, local_rank: self.sim.training.end(ranks, local_rank, code)

    def _hang(self, ranks: NodeWorkers, local_rank: int) -> None:
        """Skipped before a round's first step if collectives do not time out: such a hang would never be detected."""
        if ranks.steps or not self.options.pauses:
            ranks.stand(hang(self._pauses, local_rank, self.sim.clock.now))

    def _pause(self) -> None:
        """Let healthy workers complete no step for some time: one worker, those of a node, or all."""
        self.sim.clock.after(ns(self._pauses.expovariate(1 / PAUSE_S)), self._pause)
        living = [ranks for ranks in self.sim.training.living() if ranks.whole]
        if not self.sim.conditions.on or not living:
            return
        one = self._pauses.choice(living)
        local_rank = self._pauses.choice((None, self._pauses.randrange(one.part.slots)))
        those = [ranks for ranks in living if ranks.round == one.round] if self._pauses.random() < 0.2 else [one]
        begun = pause(self._pauses, local_rank, self.sim.clock.now, self.options.spec.timing)
        for ranks in those:
            ranks.stand(begun)
        self.sim.trace(f"PAUSE of round {one.round} on {one.process.name}: {begun.name}")

    def _on_node(self, act: Callable[..., str], *arguments: float) -> str:
        node = self._node()
        return self.harm(act(node, *arguments)) if node is not None else ""

    def _signal(self) -> str:
        """End ``ftrun`` on one node; sometimes stop the whole job, or let its launcher give up."""
        node = self._node()
        if node is None or node.agent is None:
            return ""
        agent, what = node.agent, self.chance.choices(("leave", "leave twice", "stop", "give up"), (10, 5, 1, 1))[0]
        if what.startswith("leave"):
            node.loop.call_soon(agent.leave, "SIGTERM")
        if what == "leave twice":
            node.loop.call_later(self.chance.uniform(0.1, 2.0), functools.partial(agent.leave, "again", grace_s=0.0))
        elif what == "stop":
            node.loop.call_soon(agent.ask_to_stop, "SIGINT to ftrun", 130)
        elif what == "give up":
            node.loop.call_soon(agent.give_up, "simulated: no restarts are left", 1)
        return self.harm(f"{what}: {node.name}")

    def _known_line(self) -> str:
        """A worker prints a line that a rule matches."""
        living = self.sim.training.living()
        if not living:
            return ""
        ranks = self.chance.choice(living)
        node = ranks.process
        assert isinstance(node, Node)
        if node.agent is not None:
            hit = Hit(rule="simulated", cls="network", line="simulated", count=1)
            node.loop.call_soon(node.agent.matched, ranks.round, ranks.part.base_rank, hit)
        return f"of round {ranks.round} on {node.name}"

    def _store_of_round_lost(self) -> str:
        """End the process that serves a round's store."""
        living = [ranks for ranks in self.sim.training.living() if ranks.part.group_rank == 0]
        if not living:
            return ""
        ranks = living[-1]
        node = ranks.process
        assert isinstance(node, Node)
        if node.agent is not None:
            node.loop.call_soon(node.agent.store_lost, ranks.round)
        return self.harm(f"of round {ranks.round} on {node.name}")

    def _host_crash(self) -> str:
        host = self.chance.choice(self.sim.hosts)
        host.crash()
        self.sim.clock.after(self._duration(40.0), lambda: setattr(host, "up", True))
        return self.harm(host.name)

    def _host_freeze(self) -> str:
        host = self.chance.choice(self.sim.hosts)
        duration = self._duration(12.0)
        for process in list(host.processes):
            process.freeze(duration)
        return self.harm(host.name)

    def _names(self) -> tuple[str, str]:
        one, other = self.chance.sample(self.sim.hosts, 2)
        return one.name, other.name

    def _partition(self) -> str:
        one, other = self._names()
        duration = self._duration(20.0)
        self.sim.net.block(one, other, duration)
        self.sim.net.block(other, one, duration)
        return self.harm(f"{one} <-> {other}")

    def _one_way(self) -> str:
        one, other = self._names()
        self.sim.net.block(one, other, self._duration(20.0))
        return self.harm(f"{one} -> {other}")

    def _store_cut(self) -> str:
        host = self.chance.choice(self.sim.hosts).name
        ways = ((host, STORE), (STORE, host))
        for source, target in ways if self.chance.random() < 0.5 else ways[: 1 + self.chance.randrange(1)]:
            self.sim.net.block(source, target, self._duration(20.0))
        return f"{host} from the store"

    def _bad_host(self) -> str:
        host = self.chance.choice(self.sim.hosts)
        host.bad = not host.bad
        return self.harm(f"{host.name} is {'bad' if host.bad else 'good'}")

    def _bad_switch(self) -> str:
        switch = self.chance.choice(self.sim.hosts).switch
        self.sim.bad_switches = [] if switch in self.sim.bad_switches else [switch]
        return self.harm(f"{switch} is {'bad' if self.sim.bad_switches else 'good'}")

    def _preemption(self) -> str:
        node = self._node()
        if node is None:
            return ""
        within_s = self.chance.choice((0.5, 5.0, 30.0))
        self._platform.warn(node, within_s)
        if self.chance.random() < 0.8:  # else the preemption is withdrawn
            node.preempted(within_s)
        return self.harm(f"{node.name} within {within_s:g} s")

    def _maintenance(self) -> str:
        node = self._node()
        if node is None:
            return ""
        length_s = self.chance.choice((0.5, 10.0, 60.0))
        self._platform.maintain(node, length_s)
        return self.harm(f"{node.name} for {length_s:g} s")

    def _loss_spike(self) -> str:
        """Let the loss spike on all ranks, which compute the same loss."""
        living = [ranks for ranks in self.sim.training.living() if ranks.steps]
        if not living:
            return ""
        ranks = self.chance.choice(living)
        for other in self.sim.training.gangs[ranks.round].members.values():
            other.spike(other.process.host.uptime_ns)
        return self.harm(f"after step {ranks.step} of round {ranks.round}")

    # -- faults of a trace

    def follow(self, trace: Sequence[TraceFault]) -> None:
        """Inject the faults of a trace; only those that end a process or a machine are supported."""
        self.sim.conditions.on = False
        # For any seed, a loss is noticed, even by a new master, before the replacement joins, and the replacement joins
        # before the other nodes have stopped their workers.
        self._platform.returns_s = (7.0, 8.0)
        self.sim.conditions.stubborn = 1.0
        for fault in trace:
            self.sim.clock.after(ns(fault.time_s), lambda fault=fault: self._strike_by(fault))  # type: ignore[misc]

    def _strike_by(self, fault: TraceFault) -> None:
        kind = KINDS[fault.kind]
        node = self._platform.at(fault.node)
        self.sim.trace(f"FAULT {self.harm(f'{fault.kind} at place {fault.node}')}")
        if node is None:
            return
        if kind.shows == "crash" and node.ranks is not None:
            node.supervisor.evidence = (kind.message, kind.tail)
            self.sim.training.end(node.ranks, 0, kind.exitcode)
        elif kind.shows == "lost":
            node.host.crash()
