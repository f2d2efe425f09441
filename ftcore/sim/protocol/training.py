"""The training itself, as the world would have it: workers of rounds, their steps, their checkpoints, their ends.

This is the ground truth that checkers compare the log with. A round steps only while all its ranks live, move and reach
each other, as collectives have it; where one is missing the others wait, and give up after a while. Workers resume from
the newest checkpoint, or from the one that they are told.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

import attrs

from ftcore.ports import Progress, WorkerExit
from ftcore.shm.notes import FINDINGS_MAX, SAVES_MAX, Found, Saved
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process
from ftcore.sim.protocol.network import Network
from ftcore.sim.protocol.standing import Standing

SIGKILL, SIGTERM, SIGABRT = -9, -15, -6

HEALTHY_NS = ns(5.0)
"""Training that made a step this short a time ago is well, in the eyes of checkers."""

MEETING_NS = ns(120.0)
"""Workers wait this long for others to come to the round's store: long beyond the time that their node has to start."""


@attrs.frozen(kw_only=True)
class RoundPlace:
    """A node's place in a round, as its workers' environment tells them.

    Args:
        group_rank: of the node.
        base_rank: global rank of its first worker.
        slots: its workers.
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
        process: the agent that runs them; they end with it.
        round: their round.
        part: the node's place.
        exited: told of each end that nobody asked for.
        alive: by local rank.
        findings, saves: what they leave on their pages.
    """

    process: Process
    round: int
    part: RoundPlace
    exited: Callable[[WorkerExit], None]
    alive: list[bool]
    steps: int = 0
    step: int = 0
    mono: int = 0
    paused: bool = False
    standing: Standing | None = None
    findings: list[Found] = attrs.field(factory=list)
    saves: list[Saved] = attrs.field(factory=list)

    @property
    def whole(self) -> bool:
        """All live and can take part in a step."""
        return all(self.alive) and not (self.paused or self.standing is not None or self.process.frozen)

    def stand(self, standing: Standing) -> None:
        """Do something else instead of a step, unless one of them hangs."""
        if self.standing is None or not self.standing.hangs:
            self.standing = standing

    def standing_of(self, local_rank: int) -> Standing | None:
        """What a rank does instead of a step; None: it steps, or waits for the others."""
        standing = self.standing
        return standing if standing is not None and standing.local_rank in (None, local_rank) else None

    @property
    def ill(self) -> str:
        """Why it may rightly be stopped, if there is a reason in it."""
        if not all(self.alive):
            return "a worker has ended"
        if self.process.frozen or self.paused:
            return "frozen" if self.process.frozen else "paused"
        return self.standing.name if self.standing is not None and self.standing.hangs else ""

    def pages(self, uptime_ns: int) -> tuple[Progress | None, ...]:
        """What their progress pages say, by their host's clock."""
        page = Progress(
            steps=self.steps,
            step=self.step,
            absolute=True,
            mono=self.mono + uptime_ns,
            loss=1.0,
            findings=tuple(self.findings[-FINDINGS_MAX:]),
            saves=tuple(self.saves[-SAVES_MAX:]),
        )
        return tuple(page if self.steps else None for _ in self.alive)

    def spike(self, uptime_ns: int) -> None:
        """The loss of the last step was far off; a detector in each worker has found that."""
        mono, number = self.mono + uptime_ns, len(self.findings) + 1
        self.findings.append(Found(number, "loss-spike", self.step, self.step, mono, 9.1, 2.4, 14.0, 5.0))


@attrs.define(eq=False)
class Gang:
    """All workers of a round, as far as they run.

    Args:
        round: the round.
        nodes: how many nodes it has.
        members: their workers, by group rank.
        step: the last step that it completed.
        stalled_since: since when it completes none; -1: it does.
        ill_at: when it was last ill, see ``JobTraining.ill``.
        stood_ns, stood_at: how long it completed no step last, and when that ended.
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


class JobTraining:
    """The whole job's training.

    Args:
        clock: virtual time.
        net: for who reaches whom.
        chance: where step times and ends come from.
        step_s: seconds of a step.
        total: steps of the whole training.
        every: steps between two checkpoints.
        give_up_s: seconds after which a collective that does not come about ends its process.
        poison: a step at which a rank fails every time; 0: none.
        stepped: told of each step that a round completes.
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

    # -- beginning

    def join(self, ranks: NodeWorkers, directed: int | None) -> None:
        """A node's workers of a round run; the last node's begin the round's steps."""
        gang = self.gangs.setdefault(ranks.round, Gang(ranks.round, ranks.part.nodes))
        gang.members[ranks.part.group_rank] = ranks
        if len(gang.members) == gang.nodes and gang.step < 0:
            gang.step = directed if directed is not None else max(self.checkpoints)
            self.resumed.append((gang.round, gang.step))
        if len(gang.members) == 1:
            self._tick_later(gang)

    def roll_back(self, step: int) -> None:
        """Checkpoints of later steps are of a lineage that was given up."""
        self.checkpoints = [saved for saved in self.checkpoints if saved <= step] or [0]

    # -- going on

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
        """Whose healthy standstill is over goes on; what is wrong with the round is remembered."""
        for ranks in gang.members.values():
            if ranks.standing is not None and self.clock.now >= ranks.standing.until:
                ranks.standing = None
        if self.ill(gang):
            gang.ill_at = self.clock.now

    def ill(self, gang: Gang) -> str:
        """Why the round may rightly be taken for one that hangs; empty: it makes steps, or will by itself."""
        members = list(gang.members.values())
        if len(members) < gang.nodes:
            return "not whole"
        hosts = [ranks.process.host.name for ranks in members]
        cut = not all(self.net.connected(*pair) for pair in itertools.combinations(hosts, 2))
        return next(filter(None, (ranks.ill for ranks in members)), "cut" if cut else "")

    def _moves(self, gang: Gang) -> bool:
        members = list(gang.members.values())
        if len(members) < gang.nodes or not all(ranks.whole for ranks in members):
            return False
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
            ranks.steps += 1
            ranks.step, ranks.mono = gang.step, self.clock.now
        self.best = max(self.best, gang.step)
        self._stepped(gang)
        if gang.step % self.every == 0:
            self.save(gang)
        if gang.step >= self.total:
            gang.done = True
            for ranks in list(gang.members.values()):
                self._finish(ranks)

    def save(self, gang: Gang) -> None:
        """Write a checkpoint of the step that was completed last."""
        if gang.step not in self.checkpoints:
            self.checkpoints.append(gang.step)
        saves = gang.members[0].saves
        saves.append(Saved(len(saves) + 1, gang.step, "simulated", 0.0, 0))

    def _finish(self, ranks: NodeWorkers) -> None:
        for local_rank in range(ranks.part.slots):
            delay = ns(self.chance.uniform(0.01, 0.5))
            self.clock.after(delay, lambda rank=local_rank: self.end(ranks, rank, 0))  # type: ignore[misc]

    def _stall(self, gang: Gang) -> None:
        now = self.clock.now
        if gang.stalled_since < 0:
            gang.stalled_since = now
        patience = self.give_up_ns if len(gang.members) == gang.nodes else MEETING_NS
        if now - gang.stalled_since < patience:
            return
        for ranks in list(gang.members.values()):
            for local_rank, alive in enumerate(ranks.alive):
                if alive and not ranks.process.frozen and self.chance.random() < 0.7:
                    self.end(ranks, local_rank, SIGABRT if ranks.ill else 1)

    # -- ending

    def end(self, ranks: NodeWorkers, local_rank: int, code: int) -> None:
        """A worker ends by itself, or is killed by somebody else than its agent."""
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
        """The agent has stopped them, or died; returns their exit codes."""
        codes = tuple(SIGTERM if alive else None for alive in ranks.alive)
        ranks.alive = [False] * len(ranks.alive)
        return codes

    def healthy(self, ranks: NodeWorkers | None) -> bool:
        """Whether a step was completed lately."""
        return ranks is not None and ranks.steps > 0 and self.clock.now - ranks.mono < max(HEALTHY_NS, 3 * self.step_ns)

    def living(self) -> list[NodeWorkers]:
        """All nodes' workers that live, by round and place."""
        return [
            ranks
            for _, gang in sorted(self.gangs.items())
            for _, ranks in sorted(gang.members.items())
            if any(ranks.alive)
        ]
