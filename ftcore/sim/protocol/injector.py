"""What goes wrong: faults of the kinds that the options name, at times and places drawn from the seed.

Also how long things take, and what fails that is asked for. ``harms`` keeps all that may rightly stop training.
"""

import asyncio
import functools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ftcore.faults.scan import Hit
from ftcore.sim.evidence import KINDS
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.node import Node
from ftcore.sim.protocol.options import SPIKE
from ftcore.sim.protocol.standing import hang, pause
from ftcore.sim.protocol.store import HOST as STORE
from ftcore.sim.protocol.training import SIGKILL, NodeWorkers
from ftcore.sim.trace import TraceFault

if TYPE_CHECKING:
    from ftcore.sim.protocol.simulation import Simulation

PAUSE_S = 5.0
"""Mean seconds between two healthy standstills, where there are any."""


class FaultInjector:
    """The source of all faults.

    Args:
        sim: the simulation.
    """

    def __init__(self, sim: "Simulation") -> None:
        self.sim, self.chance, self.options = sim, sim.chance, sim.options
        self.on = True
        self.harms: list[tuple[int, str]] = []
        self.struck = 0
        self._stubborn = 0.2
        self._kinds: dict[str, Callable[[], str]] = {
            "master_kill": self._master_kill,
            "master_freeze": self._master_freeze,
            "master_dies_between": self._master_dies_between,
            "store_full": self._store_full,
            "archive_away": self._archive_away,
            "socket_removed": self._socket_removed,
            "stranger": sim.people.stranger,
            "clock_stepped": self._clock_stepped,
            "signal": self._signal,
            "known_line": self._known_line,
            "agent_dies_between": self._agent_dies_between,
            "stall": self._stall,
            "store_of_round_lost": self._store_of_round_lost,
            "store_down": self._store_down,
            "store_slow": self._store_slow,
            "stream_break": self._stream_break,
            "disk_full": self._disk_full,
            "worker_kill": self._worker_kill,
            "worker_error": self._worker_error,
            "worker_hang": self._worker_hang,
            "agent_kill": self._agent_kill,
            "agent_freeze": self._agent_freeze,
            "host_crash": self._host_crash,
            "host_freeze": self._host_freeze,
            "partition": self._partition,
            "one_way": self._one_way,
            "store_cut": self._store_cut,
            "bad_host": self._bad_host,
            "bad_switch": self._bad_switch,
            "preemption": self._preemption,
            SPIKE: self._loss_spike,
            "operator_stop": sim.people.stop,
            "operator": sim.people.operate,
            "departure": sim.people.send_away,
        }
        self._pauses = random.Random(f"pauses {self.options.seed}")  # a stream of its own
        if self.options.pauses:
            self._pause()
        self._drawn = [name for name in self.options.faults if name in self._kinds]
        if self._drawn:
            self._next()

    def has(self, kind: str) -> bool:
        """Whether faults of that kind happen now."""
        return self.on and kind in self.options.faults

    def harm(self, what: str) -> str:
        """Something happened that may rightly stop training."""
        self.harms.append((self.sim.clock.now, what))
        return what

    def heal(self) -> None:
        """Nothing breaks any more, and what was broken is repaired."""
        self.on = False
        sim = self.sim
        sim.net.heal()
        sim.store.down_until = min(sim.store.down_until, sim.clock.now)
        sim.store.slow, sim.store.ambiguous, sim.store.full, sim.archive.broken = 1.0, 0.0, False, False
        sim.training.poison = 0
        sim.bad_switches.clear()
        for host in sim.hosts:
            host.up, host.bad, host.disk_full, host.stalls = True, False, False, False

    def _next(self) -> None:
        self.sim.clock.after(ns(self.chance.expovariate(1 / self.options.every_s)), self._strike)

    def _strike(self) -> None:
        if not self.on:
            return
        self.struck += 1
        name = self.chance.choice(self._drawn)
        self.sim.trace(f"FAULT {name}: {self._kinds[name]() or 'nobody there'}")
        self._next()

    def _some(self, longest_s: float) -> int:
        return ns(self.chance.uniform(0.05, 1.0) ** 2 * longest_s)

    def node(self) -> Node | None:
        """One of the nodes; None: there is none."""
        nodes = self.sim.platform.nodes()
        return self.chance.choice(nodes) if nodes else None

    # -- of ftcore itself

    def _master_kill(self) -> str:
        masters = self.sim.living_masters()
        if not masters:
            return ""
        master = self.chance.choice(masters)
        master.kill()
        return master.address

    def _master_freeze(self) -> str:
        masters = self.sim.living_masters()
        if not masters:
            return ""
        master = self.chance.choice(masters)
        master.freeze(self._some(15.0))
        return master.address

    def _master_dies_between(self) -> str:
        """Killed or frozen between any two of its callbacks."""
        masters = self.sim.living_masters()
        return self._between(self.chance.choice(masters), 15.0) if masters else ""

    def _between(self, process: Process, longest_s: float) -> str:
        count, frozen = self.chance.randint(1, 300), self.chance.random() < 0.4
        duration = self._some(longest_s)
        process.loop.after_callbacks(count, (lambda: process.freeze(duration)) if frozen else process.kill)
        return f"{process.name} {'freezes' if frozen else 'is killed'} behind {count} callbacks"

    def _store_full(self) -> str:
        store = self.sim.store
        store.full = not store.full
        store.used = 80 if store.full else self.chance.choice((10, 75))
        return "full" if store.full else "has room"

    def _archive_away(self) -> str:
        self.sim.archive.broken = not self.sim.archive.broken
        return "away" if self.sim.archive.broken else "back"

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
        return f"{host.name}, which is now off by {host.skew_ns / 1e9:g} s"

    def _stall(self) -> str:
        """Threads of a host hang: work that is given to one, a disk."""
        host = self.chance.choice(self.sim.hosts)
        host.stalls = not host.stalls
        return f"threads of {host.name} {'stall' if host.stalls else 'go on'}"

    def disk_ns(self) -> int:
        """How long a disk takes."""
        return ns(self.chance.uniform(0.0, 0.01))

    async def sleep(self, most_s: float) -> None:
        """Something takes a while."""
        await asyncio.sleep(self.chance.uniform(0.001, most_s))

    def dies_at_write(self) -> bool:
        """Whether the master is killed between two writes, here."""
        return self.has("master_dies_at_write") and self.chance.random() < 0.05

    def _store_down(self) -> str:
        self.sim.store.down_until = self.sim.clock.now + self._some(30.0)
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

    def _ranks(self, what: str, act: Callable[[NodeWorkers, int], object]) -> str:
        living = self.sim.training.living()
        if not living:
            return ""
        ranks = self.chance.choice(living)
        act(ranks, self.chance.randrange(ranks.part.slots))
        return self.harm(f"{what} of round {ranks.round} on {ranks.process.name}")

    def _worker_kill(self) -> str:
        return self._ranks("killed", lambda ranks, rank: self.sim.training.end(ranks, rank, SIGKILL))

    def _worker_error(self) -> str:
        return self._ranks("error", lambda ranks, rank: self.sim.training.end(ranks, rank, 1))

    def _worker_hang(self) -> str:
        return self._ranks("hang", self._hang)

    def _hang(self, ranks: NodeWorkers, local_rank: int) -> None:
        """Before a round's first step only a collective that gives up ends a hang that shows no evidence."""
        if ranks.steps or not self.options.pauses:
            ranks.stand(hang(self._pauses, local_rank, self.sim.clock.now))

    def _pause(self) -> None:
        """Healthy workers complete no step for a while: those of a node, one of them, or all."""
        self.sim.clock.after(ns(self._pauses.expovariate(1 / PAUSE_S)), self._pause)
        living = [ranks for ranks in self.sim.training.living() if ranks.whole]
        if not self.on or not living:
            return
        one = self._pauses.choice(living)
        local_rank = self._pauses.choice((None, self._pauses.randrange(one.part.slots)))
        those = [ranks for ranks in living if ranks.round == one.round] if self._pauses.random() < 0.2 else [one]
        begun = pause(self._pauses, local_rank, self.sim.clock.now, self.options.spec.timing)
        for ranks in those:
            ranks.stand(begun)
        self.sim.trace(f"PAUSE of round {one.round} on {one.process.name}: {begun.name}")

    def _agent_kill(self) -> str:
        node = self.node()
        if node is None:
            return ""
        node.kill()
        return self.harm(node.name)

    def _agent_freeze(self) -> str:
        node = self.node()
        if node is None:
            return ""
        node.freeze(self._some(10.0))
        return self.harm(node.name)

    def _agent_dies_between(self) -> str:
        """Killed or frozen between any two of its callbacks."""
        node = self.node()
        return self.harm(self._between(node, 10.0)) if node is not None else ""

    def _signal(self) -> str:
        """Somebody ends ``ftrun`` on one node; once in a while the whole job is to end, or its launcher gives up."""
        node = self.node()
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
            node.loop.call_soon(agent.give_up, "made up: no restarts are left", 1)
        return self.harm(f"{what}: {node.name}")

    def _known_line(self) -> str:
        """A worker prints what a rule knows."""
        living = self.sim.training.living()
        if not living:
            return ""
        ranks = self.chance.choice(living)
        node = ranks.process
        assert isinstance(node, Node)
        if node.agent is not None:
            hit = Hit(rule="made-up", cls="network", line="made up", count=1)
            node.loop.call_soon(node.agent.matched, ranks.round, ranks.part.base_rank, hit)
        return f"of round {ranks.round} on {node.name}"

    def _store_of_round_lost(self) -> str:
        """The process that serves a round's store ends."""
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
        self.sim.clock.after(self._some(40.0), lambda: setattr(host, "up", True))
        return self.harm(host.name)

    def _host_freeze(self) -> str:
        host = self.chance.choice(self.sim.hosts)
        duration = self._some(12.0)
        for process in list(host.processes):
            process.freeze(duration)
        return self.harm(host.name)

    def _names(self) -> tuple[str, str]:
        one, other = self.chance.sample(self.sim.hosts, 2)
        return one.name, other.name

    def _partition(self) -> str:
        one, other = self._names()
        duration = self._some(20.0)
        self.sim.net.block(one, other, duration)
        self.sim.net.block(other, one, duration)
        return self.harm(f"{one} <-> {other}")

    def _one_way(self) -> str:
        one, other = self._names()
        self.sim.net.block(one, other, self._some(20.0))
        return self.harm(f"{one} -> {other}")

    def _store_cut(self) -> str:
        host = self.chance.choice(self.sim.hosts).name
        ways = ((host, STORE), (STORE, host))
        for source, target in ways if self.chance.random() < 0.5 else ways[: 1 + self.chance.randrange(1)]:
            self.sim.net.block(source, target, self._some(20.0))
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
        node = self.node()
        if node is None:
            return ""
        within_s = self.chance.choice((0.5, 5.0, 30.0))
        self.sim.platform.warn(node, within_s)
        if self.chance.random() < 0.8:  # else it thinks better of it
            node.preempted(within_s)
        return self.harm(f"{node.name} within {within_s:g} s")

    def _loss_spike(self) -> str:
        """Every rank computes the same loss."""
        living = [ranks for ranks in self.sim.training.living() if ranks.steps]
        if not living:
            return ""
        ranks = self.chance.choice(living)
        for other in self.sim.training.gangs[ranks.round].members.values():
            other.spike(other.process.host.uptime_ns)
        return self.harm(f"after step {ranks.step} of round {ranks.round}")

    # -- by a trace

    def follow(self, trace: Sequence[TraceFault]) -> None:
        """Let the faults of a trace happen; those that end a process or take a machine away are known here."""
        self.on = False
        self.sim.platform.returns_s = (7.0, 8.0)  # what is lost is noticed, by a new master even, before that ...
        self._stubborn = 1.0  # ... and that one is there before the others have stopped, whatever the seed
        for fault in trace:
            self.sim.clock.after(ns(fault.time_s), lambda fault=fault: self._strike_by(fault))  # type: ignore[misc]

    def _strike_by(self, fault: TraceFault) -> None:
        kind = KINDS[fault.kind]
        node = self.sim.platform.at(fault.node)
        self.sim.trace(f"FAULT {self.harm(f'{fault.kind} at place {fault.node}')}")
        if node is None:
            return
        if kind.shows == "crash" and node.ranks is not None:
            node.evidence = (kind.message, kind.tail)
            self.sim.training.end(node.ranks, 0, kind.exitcode)
        elif kind.shows == "lost":
            node.host.crash()

    # -- how long things take, and what fails

    def start_s(self) -> float:
        """How long starting the workers takes."""
        return self.chance.uniform(0.05, 3.0 if self.chance.random() < 0.2 else 0.5)

    def unstartable(self, node: Node) -> bool:
        """Whether what is to be started there cannot be."""
        bad = node.host.bad or (self.has("unstartable") and self.chance.random() < 0.2)
        return bad and self.chance.random() < 0.5

    def started(self, node: Node) -> None:
        """Workers run: on a bad host one of them fails soon."""
        ranks = node.ranks
        if node.host.bad and ranks is not None and self.chance.random() < 0.8:
            delay = ns(self.chance.uniform(0.0, 3.0))
            node.after(delay, lambda: self.sim.training.end(ranks, 0, SIGKILL if node.host.bad else 1))
            self.harm(f"bad host {node.host.name}")

    def stop_s(self, grace_s: float) -> float:
        """How long stopping the workers takes."""
        stubborn = self.chance.random() < self._stubborn
        return grace_s + 0.1 if stubborn else min(grace_s, self.chance.uniform(0.0, 0.5))

    def perform_s(self) -> float:
        """How long something takes that leaves the processes in place."""
        return self.chance.uniform(0.01, 1.0)

    def fails(self) -> bool:
        """Whether something that leaves the processes in place fails."""
        return self.on and self.chance.random() < 0.2

    def verdict(self, host: SimMachine) -> str:
        """What a health check says of a host by itself; it lies now and then."""
        honest = "faulty" if host.bad else "healthy"
        if self.on and self.chance.random() < 0.1:
            self.harm(f"a check of {host.name} lies")
            return self.chance.choice(("healthy", "slow", "failed", "unavailable", "faulty"))
        return honest

    def exchange(self, broken: bool) -> str:
        """What comes of an exchange of data; it fails for nothing now and then."""
        lies = self.on and self.chance.random() < 0.1
        if lies:
            self.harm("an exchange of data lies")
        return "failed" if broken != lies else "passed"
