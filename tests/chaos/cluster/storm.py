"""A storm: random faults on four hosts for as long as is wanted, and afterwards a count of what must never happen.

The plan is drawn from a seed before anything starts: when, what, which host, and for how long. The job is
``ledger.py``, whose state after a step is known in advance. What a platform would do (boot the host, start its agent
anew) is done here. How many faults a storm has is the count of 24 hours of a large job: see ``FAULTS_A_DAY``.
"""

import itertools
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs
from fleet import Fleet
from harness import JOBS, Run
from hosts import Host

from ftcore.events.envelope import Event

sys.path.insert(0, str(JOBS))
from ledger import SAVE_EVERY, states  # a job's script, not a module of the tests

FAULTS_A_DAY = 27
"""10,000 accelerators in nodes of 8, at 2.1e-2 faults a node and day: the highest published rate, a tenth of it being
common. All of them in twenty minutes, or in five."""

HOSTS, MIN = 4, 3
CHAIN = """
version: 1
chain:
- process_restart: {max_restarts: 1000, patience: 30s}
- shrink
- grow: {every: 0s, steady: 0s, reserve: 0}
- stop
"""
"""Of hosts that always come back: a lost one is waited for, and trusted again at once."""

CALM_S = 8.0
"""Undisturbed training at the beginning, which gives the pace that goodput is measured by."""


@attrs.frozen
class Kind:
    """A kind of fault.

    Args:
        weight: how often it is drawn, relative to the others.
        strike: does it to a host, for some seconds if it is of that sort, and mends what a platform would mend.
        ours: it hits ftcore or its store alone, so the training must not stop.
    """

    weight: float
    strike: Callable[["Storm", Host, float], None]
    ours: bool = False


@attrs.frozen
class Struck:
    """A fault that happened: its name, where, and between which times of the machine's clock (ns)."""

    name: str
    host: str
    began: int
    ended: int


class Storm:
    """The faults of one run.

    Args:
        job: the cluster, nothing started on it yet.
        seconds: how long it lasts.
        faults: how many faults there are.
        seed: what the plan is drawn from.
        tell: called with a line for each fault.
    """

    def __init__(self, job: Fleet, seconds: float, faults: int, seed: int, tell: Callable[[str], None] = print) -> None:
        self.job, self._tell = job, tell
        draw = random.Random(seed)
        times = sorted(draw.uniform(CALM_S, max(seconds - 10.0, CALM_S)) for _ in range(faults))
        names = draw.choices(list(KINDS), [kind.weight for kind in KINDS.values()], k=faults)
        self._plan = [
            (when, name, draw.randrange(HOSTS), draw.uniform(0.5, 8.0)) for when, name in zip(times, names, strict=True)
        ]
        self._seconds = seconds
        self._agents: dict[str, Run] = {}
        self.struck: list[Struck] = []

    def run(self) -> "Outcome":
        """Train through it all, end the job, and look at what is left."""
        for host in self.job.lan.hosts:
            self.start_agent(host)
        self.job.stepped(1, nodes=HOSTS)
        began = time.monotonic()
        for when, name, place, length in self._plan:
            time.sleep(max(0.0, began + when - time.monotonic()))
            host, at = self.job.lan.hosts[place], time.monotonic_ns()
            self._tell(f"{time.monotonic() - began:6.1f} s  {name} on {host.name} ({length:.1f} s)")
            KINDS[name].strike(self, host, length)
            self.struck.append(Struck(name, host.name, at, time.monotonic_ns()))
        time.sleep(max(0.0, began + self._seconds - time.monotonic()))
        self._come_together()
        wall_s = time.monotonic() - began
        self.job.end(*self._agents.values())
        return Outcome.of(self.job, self.struck, began, wall_s)

    def _come_together(self) -> None:
        """Every host has an agent again, and the world is whole."""
        for host in self.job.lan.hosts:
            self.revive(host)
        last = self.job.of("world.formed")[-1]
        if last.data.nodes < HOSTS:
            last = self.job.wait("world.formed", last.seq, nodes=HOSTS)
        self.job.stepped(last.data.round, nodes=last.data.nodes)

    # -- what a platform does

    def start_agent(self, host: Host) -> None:
        policy = self.job.home / "policy.yaml"
        policy.parent.mkdir(parents=True, exist_ok=True)
        policy.write_text(CHAIN)
        self._agents[host.name] = self.job.start_on(
            host, "--nnodes", f"{MIN}:{HOSTS}", "--policy", str(policy), script="ledger.py"
        )

    def revive(self, host: Host) -> None:
        """Start the agent anew if it has ended; one that was told that it is out has ended too."""
        if self._agents[host.name].process.poll() is not None:
            self.start_agent(host)

    # -- faults

    def worker(self, host: Host, number: int) -> None:
        for worker in self.job.workers(host)[:1]:
            _signal(worker.pid, number)

    def agent(self, host: Host, number: int, length: float) -> None:
        """The agent alone; its workers must not outlive it."""
        host.signal(number, "ftcore.cli.ftrun")
        self._agents[host.name].process.wait(60)
        time.sleep(length)
        self.start_agent(host)

    def power(self, host: Host, length: float) -> None:
        host.power_off()
        self._agents[host.name].process.wait(60)
        time.sleep(length)
        host.boot()
        host.heal()
        self._restart_etcd(host)
        self.start_agent(host)

    def freeze(self, host: Host, length: float) -> None:
        host.freeze()
        time.sleep(length)
        host.thaw()
        time.sleep(1.0)
        self.revive(host)

    def cut(self, host: Host, length: float) -> None:
        host.cut()
        time.sleep(length)
        host.heal()
        time.sleep(1.0)
        self.revive(host)

    def master(self, number: int, length: float) -> None:
        host = self.job.master_host()
        found = host.signal(number, "ftcore.cli.master")
        if number == signal.SIGSTOP:
            time.sleep(length)
            for pid in found:
                _signal(pid, signal.SIGCONT)

    def etcd(self, length: float, *hosts: Host) -> None:
        """Members die, and are started again."""
        self.job.etcd.signal(signal.SIGKILL, *hosts)
        time.sleep(length)
        self.job.etcd.start(*hosts)

    def member(self, host: Host, length: float) -> None:
        self.etcd(length, host if host in self.job.etcd.hosts else self.job.etcd.hosts[0])

    def _restart_etcd(self, host: Host) -> None:
        if host in self.job.etcd.hosts:
            self.job.etcd.start(host)


KINDS: dict[str, Kind] = {
    "SIGKILL of a worker": Kind(5, lambda storm, host, _: storm.worker(host, signal.SIGKILL)),
    "SIGSEGV of a worker": Kind(3, lambda storm, host, _: storm.worker(host, signal.SIGSEGV)),
    "SIGABRT of a worker": Kind(3, lambda storm, host, _: storm.worker(host, signal.SIGABRT)),
    "SIGKILL of an agent": Kind(3, lambda storm, host, length: storm.agent(host, signal.SIGKILL, length)),
    "power cut": Kind(4, lambda storm, host, length: storm.power(host, length)),
    "host frozen": Kind(3, lambda storm, host, length: storm.freeze(host, length)),
    "host cut off": Kind(3, lambda storm, host, length: storm.cut(host, length)),
    "SIGKILL of the master": Kind(2, lambda storm, _, __: storm.master(signal.SIGKILL, 0), ours=True),
    "master frozen": Kind(1, lambda storm, _, length: storm.master(signal.SIGSTOP, length), ours=True),
    "etcd member killed": Kind(2, lambda storm, host, length: storm.member(host, length), ours=True),
    "all of etcd killed": Kind(1, lambda storm, _, length: storm.etcd(length), ours=True),
    "warm process killed": Kind(1, lambda storm, host, _: _kill_warm(host), ours=True),
}


def _kill_warm(host: Host) -> None:
    host.signal(signal.SIGKILL, "ftcore.runtime.warm")


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


# -- afterwards


@attrs.frozen
class Line:
    """A step that a rank completed."""

    when: int
    round: int
    step: int
    state: int
    rank: int


@attrs.frozen
class Outcome:
    """What a storm left.

    Args:
        faults: how many there were, by name.
        steps: the last step.
        rounds: how many worlds trained.
        goodput: the time that the kept steps take undisturbed, divided by the time that passed.
        stopped_s: for each fault, how long no new step was completed.
        violations: what must never happen and did, in words; empty is the aim.
    """

    faults: dict[str, int]
    steps: int
    rounds: int
    goodput: float
    stopped_s: list[tuple[str, float]]
    violations: list[str]

    @classmethod
    def of(cls, job: Fleet, struck: Sequence[Struck], began: float, wall_s: float) -> "Outcome":
        lines = sorted(_lines(job.cwd), key=lambda line: line.when)
        events = job.events.read()
        calm = [line.when for line in lines if line.rank == 0 and line.when < (began + CALM_S) * 1e9]
        pace_s = statistics.median(b - a for a, b in itertools.pairwise(calm)) / 1e9
        steps = lines[-1].step
        names = [fault.name for fault in struck]
        return cls(
            faults={name: names.count(name) for name in KINDS if name in names},
            steps=steps,
            rounds=len({line.round for line in lines}),
            goodput=steps * pace_s / wall_s,
            stopped_s=[(fault.name, gap) for fault, gap in zip(struck, _gaps(lines, struck), strict=True)],
            violations=[*_ledger(lines), *_log(job, events), *_needless(events, struck)],
        )


def _lines(place: Path) -> Iterator[Line]:
    for path in place.glob("ledger.*"):
        for line in path.read_text().splitlines():
            when, round_, step, state = map(int, line.split())
            yield Line(when, round_, step, state, int(path.suffix[1:]))


def _gaps(lines: Sequence[Line], struck: Sequence[Struck]) -> Iterator[float]:
    """Seconds from each fault until rank 0 completed a step in a newer round, or (without one) its longest wait."""
    times = [line for line in lines if line.rank == 0]
    for fault, after in itertools.zip_longest(struck, struck[1:]):
        until = after.began if after is not None else times[-1].when
        before = [line.when for line in times if line.when <= fault.began][-1:]
        within = [line.when for line in times if fault.began < line.when <= until]
        marks = [*before, *within] or [fault.began, until]
        yield max((b - a for a, b in itertools.pairwise(marks)), default=0) / 1e9


def _ledger(lines: Sequence[Line]) -> Iterator[str]:
    """Wrong numbers, steps left out, two rounds at once, a round that went on from what was never saved."""
    expected = list(itertools.islice(states(), max(line.step for line in lines) + 1))
    for line in lines:
        if line.state != expected[line.step]:
            at = f"after step {line.step} of round {line.round}"
            yield f"rank {line.rank} has {line.state} {at}, not {expected[line.step]}"
    reached, newest = 0, -1
    done: dict[int, int] = {}
    for line in lines:
        if line.round > newest:
            newest = line.round
            if line.step > reached + 1 or line.step % SAVE_EVERY != 1:
                yield f"round {line.round} begins with step {line.step}; step {reached} was the last, saved are tens"
        elif line.round < newest and line.step > done[line.round] + 1:
            # one step may be written down late: its sum had arrived when the node was frozen
            yield f"rank {line.rank} completed step {line.step} of round {line.round} while round {newest} trained"
        reached = max(reached, line.step)
        if line.round == newest:
            done[newest] = max(done.get(newest, 0), line.step)


def _log(job: Fleet, events: Sequence[Event]) -> Iterator[str]:
    """Incidents without an end; events that a follower saw otherwise than they stand in the log."""
    seen = [event.id for event in job.events.seen]
    if seen != [event.id for event in events][: len(seen)]:
        yield "a follower saw other events than the log holds"
    told = job.ftctl("incidents", "--job", job.job, "--format", "json")
    for incident in json.loads(told.stdout):
        if incident["state"] not in ("resolved", "exhausted", "superseded"):
            yield f"incident {incident['id']} is {incident['state']} at the end"


def _needless(events: Sequence[Event], struck: Sequence[Struck]) -> Iterator[str]:
    """New worlds that no fault of the training's own called for."""
    offset = time.time_ns() - time.monotonic_ns()
    formed = [event.time - offset for event in events if event.type == "world.formed"]
    for before, fault, after in zip([None, *struck], struck, [*struck[1:], None], strict=False):
        settled = before is None or fault.began - before.ended > 20e9
        if KINDS[fault.name].ours and settled:
            until = after.began if after is not None else fault.ended + 20_000_000_000
            if any(fault.began < when < until for when in formed):
                yield f"{fault.name} stopped the training"
