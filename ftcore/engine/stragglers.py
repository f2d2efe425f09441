"""Stragglers: find ranks whose own work per step takes longer than that of the others, and slowdowns of all. Pure.

In synchronous training, a step takes the same time on all ranks. What differs is the share of work and of waiting. Each
worker measures the phases of its steps (``shm/phases.py``); heartbeats carry the medians of some ten steps, a *block*,
of each rank. The master compares blocks of the same steps, one of each rank, with the detectors of
``faults/detectors/slow_rank.py`` and ``slowdown.py``.

Ranks that do the same work are compared: those with the same role as declared by the script; else, if the policy file
declares ``data_parallel``, those with the same model-parallel index; else those whose optimizers have parameters of the
same shapes.

``value`` and ``usual`` of the fact are the time of a step with the slow rank, and with one like its peers. A rank is
reported if the difference is worth it: 2 ms where others need 1 ms make no straggler in a step of 200 ms. It is
reported when it is detected, and again every ``AGAIN_S`` while it remains slow: policies may have passed before.
"""

import math
import statistics
from collections import deque
from collections.abc import Sequence

import attrs

from ftcore.events.worker import FaultObserved
from ftcore.faults.detectors.slow_rank import PEERS_MAX, WINDOW, SlowRank, SlowRankDetector
from ftcore.faults.detectors.slowdown import Slowdown, SlowdownDetector
from ftcore.ports import Progress
from ftcore.shm.phases import COMMUNICATION, PHASES
from ftcore.states.model import JobState
from ftcore.states.rounds import WorldState
from ftcore.wording import plural

AGAIN_S = 600.0
"""Seconds between two reports of the same straggler, and between two reports of slowdowns."""

GAIN = 0.015
"""Least part of a step that a slow rank costs, if it is reported."""

QUEUE_MAX = 8
"""Blocks of one rank that wait for those of the others."""

SAMPLES_MAX = 100_000
"""Blocks that are kept to tell the slow phase: ``WINDOW`` of each rank, fewer in a large job."""


@attrs.frozen
class Pace:
    """The average pace of a node's slowest rank over some steps.

    Args:
        own_s: seconds of own work per step.
        whole_s: seconds per step.
    """

    own_s: float
    whole_s: float


@attrs.frozen
class RankBlocks:
    """New blocks of steps of one rank, for a heartbeat.

    Args:
        local_rank: its rank on the node.
        role: which other ranks do the same work; empty: not known.
        declared: the script has declared the role.
        blocks: by block, oldest first: its number, 1 for times of the device, and microseconds per step: whole, own
            work, and each of ``PHASES``.
    """

    local_rank: int
    role: str
    declared: bool
    blocks: tuple[tuple[int, ...], ...]


class PagePace:
    """The pace of an agent's workers since the last call, from their pages."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, float, float]] = {}
        self._sent: dict[int, int] = {}

    def since_last(self, pages: Sequence[Progress | None]) -> Pace | None:
        """The pace of the slowest rank in the new steps; None if there are no new steps or no measurement."""
        paces = []
        for rank, page in enumerate(pages):
            now = (page.paced, page.own_s, page.whole_s) if page is not None else (0, 0.0, 0.0)
            steps, own_s, whole_s = self._before.get(rank, (0, 0.0, 0.0))
            if now[0] < steps:  # a new process
                steps, own_s, whole_s = 0, 0.0, 0.0
            self._before[rank] = now
            new = now[0] - steps
            if new > 0:
                paces.append(Pace((now[1] - own_s) / new, (now[2] - whole_s) / new))
        return max(paces, key=lambda pace: pace.own_s, default=None)

    def new_blocks(self, pages: Sequence[Progress | None]) -> tuple[RankBlocks, ...]:
        """The blocks of steps that no earlier call has returned, by rank."""
        found = []
        for rank, page in enumerate(pages):
            newest = page.blocks[-1].number if page is not None and page.blocks else 0
            sent = self._sent.get(rank, 0)
            self._sent[rank] = newest
            if page is None or newest == sent:
                continue
            blocks = tuple(
                (block.number, int(block.device), *(ns // 1000 for ns in (block.whole, block.own, *block.phases)))
                for block in page.blocks
                if block.number > sent or newest < sent  # a new process counts from 1
            )
            found.append(RankBlocks(rank, page.role, page.role_declared, blocks))
        return tuple(found)


@attrs.frozen
class _RankSample:
    """One block of each rank, in seconds per step."""

    whole: list[float]
    own: list[float]
    phases: list[tuple[int, ...]]
    """In microseconds."""


class StragglerWatch:
    """The master's record of the ranks' times in one world; detects stragglers and slowdowns.

    Args:
        span_s: least seconds for which a rank was slow when it is reported.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._round = 0
        self._size = 0
        self._heard: list[tuple[str, RankBlocks]] = []
        self._slowdown = SlowdownDetector()
        self._slowed_at = -math.inf
        self._enter(None)

    def _enter(self, world: WorldState | None) -> None:
        """Begin to watch a world. Its pace is compared with that of earlier rounds of the same size."""
        size = world.size if world is not None else 0
        if size != self._size:
            self._slowdown = SlowdownDetector()
        self._round, self._size = world.round if world is not None else 0, size
        self._detector = SlowRankDetector(size, self._span_s)
        self._queues: list[deque[tuple[int, ...]]] = [deque(maxlen=QUEUE_MAX) for _ in range(size)]
        self._roles: list[tuple[str, bool]] = [("", False)] * size
        self._groups: list[list[int]] | None = None
        self._samples: deque[_RankSample] = deque(maxlen=min(WINDOW, max(3, SAMPLES_MAX // max(size, 1))))
        self._step: tuple[int | None, bool] = (None, False)
        """The newest step that was heard of, which the log may lack; see ``FaultObserved``."""
        self._steps: deque[int | None] = deque(maxlen=WINDOW)
        self._first: list[tuple[int, ...]] = []
        self._reported: dict[str, float] = {}
        self._slow: dict[str, str] = {}

    def heard(self, node: str, round_: int, ranks: Sequence[RankBlocks], step: int | None, absolute: bool) -> None:
        """Take in the blocks of a heartbeat, with the newest step that the node's workers have completed."""
        if round_ == self._round:
            self._heard.extend((node, each) for each in ranks)
            self._step = (step, absolute) if step is not None else self._step

    def slow(self, node: str) -> str:
        """The slow ranks of a node, with their phases, as text; empty: it has none."""
        return self._slow.get(node, "")

    def look(self, state: JobState, now: float) -> list[FaultObserved]:
        """Compare what was heard; returns the stragglers and the slowdown to report.

        Args:
            state: the folded state.
            now: seconds of a monotonic clock.
        """
        world = state.rounds.world
        heard, self._heard = self._heard, []
        if world is None or not world.started or state.incident is not None:
            for queue in self._queues:
                queue.clear()
            return []
        if world.round != self._round:
            self._enter(world)
            return []
        for node, ranks in heard:
            self._take(world, node, ranks)
        facts: list[FaultObserved] = []
        while heard and self._size and all(self._queues):
            facts += self._compare(state, world, now)
        return facts

    def _take(self, world: WorldState, node: str, ranks: RankBlocks) -> None:
        seat = world.seat(node)
        member = world.members[seat] if seat is not None else None
        if member is None or not 0 <= ranks.local_rank < member.slots:
            return
        rank = member.base_rank + ranks.local_rank
        if self._roles[rank] != (ranks.role, ranks.declared):
            self._roles[rank], self._groups = (ranks.role, ranks.declared), None
        self._queues[rank].extend(block for block in ranks.blocks if len(block) == 4 + len(PHASES))

    def _compare(self, state: JobState, world: WorldState, now: float) -> list[FaultObserved]:
        newest = max(queue[0][0] for queue in self._queues)
        heads = []
        for queue in self._queues:  # an agent may have missed blocks: go on with the first ones that all have
            while queue[0][0] < newest and len(queue) > 1:
                queue.popleft()
            heads.append(queue.popleft())
        sample = _RankSample(
            [head[2] / 1e6 for head in heads], [head[3] / 1e6 for head in heads], [head[4:] for head in heads]
        )
        self._samples.append(sample)
        self._steps.append(self._step[0])
        if self._groups is None:
            self._groups = self._grouped(state)
        found = self._detector.observe(now, sample.own, self._groups)
        if not self._first and len(self._samples) == self._samples.maxlen:
            self._first = [self._phases(rank) for rank in range(self._size)]
        facts = self._report_slow(state, world, now, found)
        if not self._detector.named:  # else the slow rank explains it
            slower = self._slowdown.observe(statistics.median(sample.whole))
            if slower is not None and now - self._slowed_at >= AGAIN_S:
                self._slowed_at = now
                facts.append(self._slower(state, world, slower))
        return facts

    def _grouped(self, state: JobState) -> list[list[int]]:
        """The ranks that do the same work; ranks are compared within a group."""
        declared = state.policy.declared.data_parallel
        model = self._size // declared if declared > 1 and self._size % declared == 0 else 0
        groups: dict[object, list[int]] = {}
        for rank, (role, is_declared) in enumerate(self._roles):
            key = (role,) if is_declared else rank % model if model else role
            groups.setdefault(key, []).append(rank)
        return list(groups.values())

    def _phases(self, rank: int) -> tuple[int, ...]:
        """Medians of a rank's phases over the kept samples, in microseconds."""
        return tuple(
            int(statistics.median(values))
            for values in zip(*(sample.phases[rank] for sample in self._samples), strict=True)
        )

    def _usual_phases(self, rank: int) -> tuple[int, ...]:
        """The same of its peers; of a rank without peers: of its own first samples."""
        group = next(group for group in self._groups or () if rank in group)
        if len(group) == 1:
            return self._first[rank] if self._first else self._phases(rank)
        peers = [other for other in group[:: -(-len(group) // PEERS_MAX)] if other != rank] or [
            other for other in group if other != rank
        ]
        return tuple(
            int(statistics.median(values)) for values in zip(*(self._phases(other) for other in peers), strict=True)
        )

    def _report_slow(
        self, state: JobState, world: WorldState, now: float, found: Sequence[SlowRank]
    ) -> list[FaultObserved]:
        if not found:
            self._reported, self._slow = {}, {}
            return []
        nodes = [member for member in world.members for _ in range(member.slots)]
        slow: dict[str, list[SlowRank]] = {}
        for each in found:
            if each.rank < len(nodes) and self._gain(each) >= GAIN:
                slow.setdefault(nodes[each.rank].node, []).append(each)
        self._reported = {node: at for node, at in self._reported.items() if node in slow}
        self._slow = {node: self._slow.get(node, "") for node in slow}
        facts = []
        for node, ranks in slow.items():
            if now - self._reported.get(node, -math.inf) >= AGAIN_S or not self._slow[node]:
                fact = self._fact(state, node, ranks)
                self._slow[node] = f"rank {fact.rank}: {fact.phase}"
                if now - self._reported.get(node, -math.inf) >= AGAIN_S:
                    self._reported[node] = now
                    facts.append(fact)
        return facts

    def _times(self, slow: SlowRank) -> tuple[float, float, float]:
        """Medians of a slow rank's whole step, own work, and own work if it were like its peers, in seconds."""
        ratios = self._detector.ratios(slow.rank)[-len(self._samples) :]
        samples = list(self._samples)[-len(ratios) :]
        usual = [sample.own[slow.rank] / ratio for sample, ratio in zip(samples, ratios, strict=True) if ratio > 0]
        whole = statistics.median(sample.whole[slow.rank] for sample in samples)
        own = statistics.median(sample.own[slow.rank] for sample in samples)
        return whole, own, statistics.median(usual or [own])

    def _gain(self, slow: SlowRank) -> float:
        """The part of a step that all ranks lose by a slow one."""
        ratios = self._detector.ratios(slow.rank)[-len(self._samples) :]
        samples = list(self._samples)[-len(ratios) :]
        return statistics.median(
            sample.own[slow.rank] * (1 - 1 / ratio) / sample.whole[slow.rank] if ratio > 0 else 0.0
            for sample, ratio in zip(samples, ratios, strict=True)
        )

    def _fact(self, state: JobState, node: str, ranks: Sequence[SlowRank]) -> FaultObserved:
        slow = ranks[0]
        whole, own, usual = self._times(slow)
        phases, others = self._phases(slow.rank), self._usual_phases(slow.rank)
        phase = max(range(COMMUNICATION), key=lambda index: phases[index] - others[index])
        more = f"; {plural(len(ranks) - 1, 'other rank')} of {node} slow as well" if len(ranks) > 1 else ""
        since = self._steps[-min(slow.samples, len(self._steps))]
        values = {
            "value": whole,
            "usual": whole - own + usual,
            "own": own,
            "own_usual": usual,
            "phase": phases[phase] / 1e6,
            "phase_usual": others[phase] / 1e6,
        }
        return FaultObserved(
            node=node,
            incarnation=state.membership.nodes[node].incarnation,
            round=self._round,
            source="detector",
            kind="straggler",
            rank=slow.rank,
            phase=PHASES[phase],
            message=f"slow in {PHASES[phase]} ({_ms(values['phase'])}, on its peers {_ms(values['phase_usual'])}): its "
            f"own work takes {_ms(own)} of a step, {_ms(usual)} on its peers; the step takes {_ms(whole)} with it and "
            f"{_ms(values['usual'])} without{more}",
            step=self._step[0],
            absolute=self._step[1],
            values={name: round(value, 6) for name, value in values.items()}
            | ({"since": float(since)} if since is not None else {}),
        )

    def _slower(self, state: JobState, world: WorldState, slower: Slowdown) -> FaultObserved:
        member = world.members[0]
        before, after = slower.before, slower.after
        return FaultObserved(
            node=member.node,
            incarnation=member.incarnation,
            round=self._round,
            source="detector",
            kind="slowdown",
            message=f"all ranks are slower: a step takes {_ms(after)}, it took {_ms(before)} before "
            f"({(1 - before / after) * 100:.0f} % less work per second)",
            step=self._step[0],
            absolute=self._step[1],
            values={"before": round(before, 6), "after": round(after, 6)},
        )


def _ms(seconds: float) -> str:
    """Milliseconds with three figures."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
