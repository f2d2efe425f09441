"""Simulated training: workers of rounds, their steps, checkpoints and exits.

This is the ground truth with which checkers compare the log. As with collectives, a round completes steps only while
all its ranks run and reach each other; otherwise they wait, and time out. Workers resume from the newest checkpoint, or
from the step in their environment; those that registered their state load it (``saved_state.py``).
"""

import itertools
import random
from collections.abc import Callable
from typing import Any, Protocol

import attrs

from ftcore.ports import Progress, WorkerExit
from ftcore.shm.notes import FINDINGS_MAX, SAVES_MAX, CheckpointNote, FindingNote
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process
from ftcore.sim.protocol.network import Network
from ftcore.sim.protocol.standing import Standing

SIGKILL, SIGTERM, SIGABRT = -9, -15, -6

HEALTHY_NS = ns(5.0)
"""Training counts as healthy for this long after a step."""

MEETING_NS = ns(120.0)
"""Timeout of workers that wait for others at the round's store; far above the start timeout of nodes."""


@attrs.frozen(kw_only=True)
class RoundPlace:
    """A node's place in a round, from its workers' environment.

    Args:
        group_rank: rank of the node.
        base_rank: global rank of its first worker.
        slots: number of its workers.
        nodes: nodes of the round.
    """

    group_rank: int
    base_rank: int
    slots: int
    nodes: int


@attrs.define(eq=False)
class NodeWorkers:
    """One node's workers of a round.

    Args:
        process: their agent; they end with it.
        round: their round.
        part: the node's place.
        exited: called with each exit that the agent did not cause.
        resume: what they must load, as their environment says; empty: nothing.
        alive: whether each runs, by local rank.
        stop_at: the step boundary from which on they wait; 0: none.
        waits: they wait at the boundary behind their last step; otherwise they have begun the next one.
        save_at: the step boundary at which they save; 0: none.
        in_memory: they save there in memory only.
        saved: the step boundary of their newest save on request.
        parked: they wait for the next round.
        findings, saves: findings and checkpoints on their progress pages.
    """

    process: Process
    round: int
    part: RoundPlace
    exited: Callable[[WorkerExit], None]
    alive: list[bool]
    steps: int = 0
    step: int = 0
    mono: int = 0
    stop_at: int = 0
    waits: bool = False
    save_at: int = 0
    in_memory: bool = False
    saved: int = 0
    parked: bool = False
    resume: str = ""
    standing: Standing | None = None
    findings: list[FindingNote] = attrs.field(factory=list)
    saves: list[CheckpointNote] = attrs.field(factory=list)
    _page: Progress | None = None

    @property
    def paused(self) -> bool:
        """Whether they wait between two steps: parked, or at a step boundary."""
        return self.parked or self.waits

    @property
    def must_wait(self) -> bool:
        """Whether they wait at the boundary behind their last step, if they have not passed it yet."""
        return 0 < self.stop_at <= self.steps

    @property
    def whole(self) -> bool:
        """Whether all run and can take part in a step."""
        return all(self.alive) and not (self.paused or self.standing is not None or self.process.frozen)

    def park(self) -> None:
        """Wait for the next round; one that hangs is stopped by its agent."""
        if self.standing is not None and self.standing.hangs and self.standing.local_rank is not None:
            self.alive[self.standing.local_rank] = False
        self.parked, self.standing = True, None

    def stand(self, standing: Standing) -> None:
        """Begin a standstill, unless one of them hangs."""
        if self.standing is None or not self.standing.hangs:
            self.standing = standing

    def standing_of(self, local_rank: int) -> Standing | None:
        """The standstill of a rank; None: it steps, or waits for the others."""
        standing = self.standing
        return standing if standing is not None and standing.local_rank in (None, local_rank) else None

    @property
    def ill(self) -> str:
        """Why the workers may legitimately be stopped; empty if there is no reason."""
        if not all(self.alive):
            return "a worker has ended"
        if self.process.frozen or self.paused:
            return "frozen" if self.process.frozen else "paused"
        return self.standing.name if self.standing is not None and self.standing.hangs else ""

    def pages(self, uptime_ns: int, abilities: tuple[str, ...]) -> tuple[Progress | None, ...]:
        """Their progress pages, by their host's clock, with what they can do on request."""
        if self.steps and self._page is None:
            self._page = Progress(
                steps=self.steps,
                step=self.step,
                absolute=True,
                mono=self.mono + uptime_ns,
                loss=1.0,
                findings=tuple(self.findings[-FINDINGS_MAX:]),
                saves=tuple(self.saves[-SAVES_MAX:]),
                abilities=abilities,
            )
        return (self._page,) * len(self.alive)

    def complete(self, step: int, now: int) -> None:
        """Complete a step."""
        self.steps += 1
        self.step, self.mono, self.waits = step, now, self.must_wait
        self._page = None

    def note_save(self, step: int) -> None:
        """Add a saved checkpoint."""
        self.saves.append(CheckpointNote(len(self.saves) + 1, step, "simulated", 0.0, 0))
        self._page = None

    def spike(self, uptime_ns: int) -> None:
        """Add a finding of a loss spike in the last step."""
        mono, number = self.mono + uptime_ns, len(self.findings) + 1
        self.findings.append(FindingNote(number, "loss-spike", self.step, self.step, mono, 9.1, 2.4, 14.0, 5.0))
        self._page = None


@attrs.define(eq=False)
class Gang:
    """All running workers of a round.

    Args:
        round: the round.
        nodes: number of nodes.
        members: their workers, by group rank.
        step: the last completed step.
        stalled_since: since when it completes no steps; -1: it does.
        ill_at: when it was last ill, see ``JobTraining.ill``.
        stood_ns, stood_at: duration and end of its last standstill.
        done: it has ended.
    """

    round: int
    nodes: int
    members: dict[int, NodeWorkers] = attrs.field(factory=dict)
    step: int = -1
    stalled_since: int = -1
    ill_at: int = 0
    stood_ns: int = 0
    stood_at: int = 0
    done: bool = False


class RegisteredState(Protocol):
    """The state of a script that registered it; see ``saved_state.SimSavedState``."""

    def stage(self, gang: Gang) -> None:
        """A round has completed a step."""

    def save(self, gang: Gang, *, in_memory: bool) -> None:
        """A round saves at a step boundary."""

    def load(self, gang: Gang, directed: int | None) -> None:
        """A round loads its state; the owner continues with ``JobTraining.begin``."""


class JobTraining:
    """The whole job's training.

    Args:
        clock: virtual time.
        net: the network.
        chance: random generator of step times and exits.
        step_s: seconds of a step.
        total: steps of the whole training.
        every: steps between two checkpoints.
        give_up_s: timeout of a collective in seconds, which ends its process.
        poison: a step at which a rank always fails; 0: none.
        stepped: called after each step of a round.

    Attributes:
        state: the registered state; None: the script saves and loads by itself.
    """

    def __init__(
        self,
        clock: Scheduler,
        net: Network,
        chance: random.Random,
        *,
        step_s: float,
        total: int,
        every: int,
        give_up_s: float,
        poison: int,
        stepped: Callable[[Gang], None],
    ) -> None:
        self.clock, self.net, self.chance = clock, net, chance
        self.step_ns, self.total, self.every, self.give_up_ns = ns(step_s), total, every, ns(give_up_s)
        self.poison = poison
        self.checkpoints: list[int] = [0]
        self.gangs: dict[int, Gang] = {}
        self.resumed: list[tuple[int, int]] = []
        self.best = 0
        self._stepped = stepped
        self.state: RegisteredState | None = None

    # -- start

    def join(self, ranks: NodeWorkers, directed: int | None) -> None:
        """Add a node's workers to a round; the steps begin with the last node."""
        gang = self.gangs.setdefault(ranks.round, Gang(ranks.round, ranks.part.nodes))
        gang.members[ranks.part.group_rank] = ranks
        if len(gang.members) == gang.nodes and gang.step < 0:
            if self.state is not None:
                self.state.load(gang, directed)
            else:
                self.begin(gang, directed if directed is not None else max(self.checkpoints))
        if len(gang.members) == 1:
            self._tick_later(gang)

    def begin(self, gang: Gang, step: int) -> None:
        """Let a round begin behind a step."""
        gang.step = step
        self.resumed.append((gang.round, step))

    def give_up(self, gang: Gang) -> None:
        """End the workers of a round, which cannot load their state."""
        for ranks in list(gang.members.values()):
            for local_rank in range(ranks.part.slots):
                self.end(ranks, local_rank, 1)

    def roll_back(self, step: int) -> None:
        """Discard checkpoints of later steps."""
        self.checkpoints = [saved for saved in self.checkpoints if saved <= step] or [0]

    # -- steps

    def _tick_later(self, gang: Gang) -> None:
        self.clock.after(ns(self.step_ns / 1e9 * self.chance.uniform(0.8, 1.3)), lambda: self._tick(gang))

    def _tick(self, gang: Gang) -> None:
        if gang.done:
            return
        if not any(any(ranks.alive) for ranks in gang.members.values()):
            gang.done = True
            return
        self._let_go_on(gang)
        if self._moves(gang):
            gang.stalled_since = -1
            self._complete(gang)
        elif not any(ranks.paused for ranks in gang.members.values()):
            self._stall(gang)
        if not gang.done:
            self._tick_later(gang)

    def _let_go_on(self, gang: Gang) -> None:
        """End healthy standstills that are over; record when the round is ill."""
        for ranks in gang.members.values():
            if ranks.standing is not None and self.clock.now >= ranks.standing.until:
                ranks.standing = None
        if self.ill(gang):
            gang.ill_at = self.clock.now

    def ill(self, gang: Gang) -> str:
        """Why the round may legitimately be judged to hang; empty: it completes steps, or will by itself."""
        members = list(gang.members.values())
        if len(members) < gang.nodes or gang.step < 0:
            return "not whole"
        found = next(filter(None, (ranks.ill for ranks in members)), "")
        if found or self.net.whole:
            return found
        hosts = [ranks.process.host.name for ranks in members]
        return "" if all(self.net.connected(*pair) for pair in itertools.combinations(hosts, 2)) else "cut"

    def _moves(self, gang: Gang) -> bool:
        members = list(gang.members.values())
        if len(members) < gang.nodes or gang.step < 0 or not all(ranks.whole for ranks in members):
            return False
        if self.net.whole:
            return True
        first, *rest = (ranks.process.host.name for ranks in members)
        return all(self.net.connected(first, other) for other in rest)

    def _complete(self, gang: Gang) -> None:
        if gang.step + 1 == self.poison:
            ranks = gang.members[0]
            self.end(ranks, 0, 1)
            return
        stepped = max(ranks.mono for ranks in gang.members.values())
        if self.clock.now - stepped > HEALTHY_NS:
            gang.stood_ns, gang.stood_at = self.clock.now - stepped, self.clock.now
        gang.step += 1
        for ranks in gang.members.values():
            ranks.complete(gang.step, self.clock.now)
        self.best = max(self.best, gang.step)
        self._stepped(gang)
        if self.state is not None:
            self.state.stage(gang)
        elif gang.step % self.every == 0:
            self.save(gang)
        self.save_requested(gang)
        if gang.step >= self.total:
            gang.done = True
            for ranks in list(gang.members.values()):
                self._finish(ranks)

    def save_requested(self, gang: Gang) -> None:
        """Save if all workers are at the step boundary at which they were ordered to."""
        members = gang.members.values()
        if all(ranks.save_at == ranks.steps != ranks.saved for ranks in members):
            self.save(gang, in_memory=any(ranks.in_memory for ranks in members))
            for ranks in members:
                ranks.saved = ranks.save_at

    def save(self, gang: Gang, *, in_memory: bool = False) -> None:
        """Save a checkpoint of the last completed step; with ``in_memory``, not to storage, if the state allows it."""
        if self.state is not None:
            self.state.save(gang, in_memory=in_memory)
            return
        if gang.step not in self.checkpoints:
            self.checkpoints.append(gang.step)
        gang.members[0].note_save(gang.step)

    def _finish(self, ranks: NodeWorkers) -> None:
        for local_rank in range(ranks.part.slots):
            delay = ns(self.chance.uniform(0.01, 0.5))
            self.clock.after(delay, lambda rank=local_rank: self.end(ranks, rank, 0))  # type: ignore[misc]

    def _stall(self, gang: Gang) -> None:
        now = self.clock.now
        if gang.stalled_since < 0:
            gang.stalled_since = now
        patience = self.give_up_ns if len(gang.members) == gang.nodes and gang.step >= 0 else MEETING_NS
        if now - gang.stalled_since < patience:
            return
        for ranks in list(gang.members.values()):
            for local_rank, alive in enumerate(ranks.alive):
                if alive and not ranks.process.frozen and self.chance.random() < 0.7:
                    self.end(ranks, local_rank, SIGABRT if ranks.ill else 1)

    # -- exits

    def end(self, ranks: NodeWorkers, local_rank: int, code: int) -> None:
        """End a worker: by itself, or killed from outside its agent."""
        if not ranks.alive[local_rank] or not ranks.process.alive:
            return
        ranks.alive[local_rank] = False
        ended = WorkerExit(
            round=ranks.round,  # type: ignore[arg-type]
            local_rank=local_rank,
            pid=1000 + local_rank,
            exitcode=code,
            mono=self.clock.now,
        )
        ranks.process.wake_for(lambda: ranks.exited(ended))

    def stop(self, ranks: NodeWorkers) -> tuple[Any, ...]:
        """End workers with their agent's stop or death; returns their exit codes."""
        codes = tuple(SIGTERM if alive else None for alive in ranks.alive)
        ranks.alive = [False] * len(ranks.alive)
        return codes

    def healthy(self, ranks: NodeWorkers | None) -> bool:
        """Whether a step was completed recently."""
        return ranks is not None and ranks.steps > 0 and self.clock.now - ranks.mono < max(HEALTHY_NS, 3 * self.step_ns)

    def living(self) -> list[NodeWorkers]:
        """All running workers of nodes, by round and place."""
        return [
            ranks
            for _, gang in sorted(self.gangs.items())
            for _, ranks in sorted(gang.members.items())
            if any(ranks.alive)
        ]
