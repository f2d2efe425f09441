"""Generated runs of training scripts in virtual time, watched by the production code of agent and master.

A run is made from a seed: four ranks of one node make steps, with the pauses of other people's scripts between them:
compilation, first batches of an epoch, evaluations on all ranks or on one, saves, uploads, polls, slow phases, single
slow steps, a suspended machine. Some pauses are marked as sections, others are not. A run may end with a hang. Pages,
kernel and stacks are made up; ``ProgressWatch``, ``StandstillWatch`` and the engine are those of production.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import msgspec

from ftcore.engine.standstill import StandstillWatch
from ftcore.events.policy import DeclaredHangs
from ftcore.events.worker import StandstillJudged
from ftcore.policies.file.config import default_chain
from ftcore.ports import Progress, Signs
from ftcore.runtime.agent.telemetry import samples, sockets, watch_progress
from ftcore.runtime.agent.telemetry.watch_progress import ProgressWatch
from ftcore.runtime.host import SystemHost
from ftcore.shm.calls import Call
from ftcore.shm.sections import CHECKPOINT, COMPILE, EVALUATION, PastSection, SectionState
from ftcore.testing.driver import JobDriver
from ftcore.timing import DEFAULT

SIZE: Final = 4
TICK_S: Final = 1.4
FOREVER_S: Final = 1e5
NODE: Final = "node0"
LOADER_PID: Final = 9000


@attrs.frozen
class Doing:
    """What a rank does for a while.

    Args:
        state: ``runs`` or ``waits``.
        waits: as in ``events.worker.RankState``.
        op: the collective that it is inside of.
        every_s: seconds between two signs of activity that the kernel shows; 0: none, or always if it runs.
        ends: the kernel shows when the wait ends.
        loads: it waits for its data loader, whose process is stuck if ``every_s`` is 0.
        call: number of its newest collective.
    """

    state: str = "runs"
    waits: str = ""
    op: str = ""
    every_s: float = 0.0
    ends: bool = False
    loads: bool = False
    call: int = 0


RUNS: Final = Doing()
REDUCES: Final = Doing("waits", "outside", "all_reduce", call=7)
IN_BARRIER: Final = Doing("waits", "outside", "barrier", call=7)


@attrs.frozen
class Part:
    """A part of a run.

    Args:
        seconds: its duration.
        doing: what each rank does.
        section: the section of rank 0, and of all ranks that are outside of collectives; empty: it is not marked.
        steps: the part ends with a step.
        hang: its name, if it is a hang.
        suspended: nothing runs, the agent neither.
        limit_s: the limit that the script declares for the section.
    """

    seconds: float
    doing: tuple[Doing, ...] = (RUNS,) * SIZE
    section: str = ""
    steps: bool = True
    hang: str = ""
    suspended: bool = False
    limit_s: float | None = None


def _alone(doing: Doing, others: Doing = IN_BARRIER) -> tuple[Doing, ...]:
    return (doing, *(others,) * (SIZE - 1))


class Script:
    """The habits of one script, from a seed."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.step_s = 10 ** chance.uniform(-1.3, 1.2)
        self.sigma = chance.uniform(0.05, 0.4)
        self.marked = chance.random() < 0.5
        self.epoch, self.evaluation, self.save = (chance.randint(20, 400) for _ in range(3))
        self.evaluation_times = chance.uniform(5.0, 40.0)
        self.save_s = 10 ** chance.uniform(0.0, 2.4)
        self.alone = chance.random() < 0.5

    def begin(self) -> Iterator[Part]:
        """The time before the first step."""
        yield Part(self.chance.uniform(5.0, 60.0), steps=False)
        section = COMPILE if self.marked else ""
        yield Part(10 ** self.chance.uniform(1.0, 3.0), section=section)

    def step(self) -> Part:
        """An ordinary step; one of a thousand is slow."""
        slow = self.chance.uniform(5.0, 30.0) if self.chance.random() < 1e-3 else 1.0
        return Part(self.step_s * self.chance.lognormvariate(0.0, self.sigma) * slow)

    def pauses(self, step: int) -> Iterator[Part]:
        """The pauses after a step."""
        chance = self.chance
        if step % self.epoch == 0:
            loads = Doing("waits", "outside", every_s=4.0, loads=True)
            yield Part(chance.uniform(1.0, 60.0), (loads,) * SIZE, steps=False)
        if step % self.evaluation == 0:
            seconds = min(self.step_s * self.evaluation_times * chance.uniform(0.8, 1.5), 900.0)
            doing = _alone(RUNS) if self.alone else (RUNS,) * SIZE
            yield Part(seconds, doing, EVALUATION if self.marked else "", steps=False)
        if step % self.save == 0:
            seconds = self.save_s * chance.uniform(0.7, 2.0)
            writes = Doing("waits", "outside", every_s=chance.uniform(0.5, 20.0))
            yield Part(seconds, _alone(writes), CHECKPOINT if self.marked else "", steps=False)
        if chance.random() < 2e-3:
            yield self._rare()

    def _rare(self) -> Part:
        chance, seconds = self.chance, 10 ** self.chance.uniform(1.0, 3.0)
        kinds = (
            lambda: Part(seconds, _alone(Doing("waits", "outside", every_s=chance.uniform(1.0, 60.0))), steps=False),
            lambda: Part(seconds, _alone(Doing("waits", "lock", every_s=chance.uniform(1.0, 20.0))), steps=False),
            lambda: Part(seconds, _alone(Doing("waits", "sleep", every_s=0.3)), steps=False),
            lambda: Part(seconds, _alone(Doing("waits", "sleep", ends=True)), steps=False),
            lambda: Part(min(seconds, 400.0), (Doing("waits", "outside", every_s=30.0),) * SIZE, steps=False),
            lambda: Part(seconds, suspended=True, steps=False),
        )
        return chance.choice(kinds)()


def _other(doing: Doing) -> tuple[Doing, ...]:
    return _alone(doing, REDUCES)


HANGS: Final[dict[str, Part]] = {
    name: attrs.evolve(part, seconds=FOREVER_S, hang=name, steps=False)
    for name, part in {
        "sleeps for ever": Part(0, _other(Doing("waits", "sleep", ends=True))),
        "waits for a lock": Part(0, _other(Doing("waits", "lock"))),
        "waits for an answer": Part(0, _other(Doing("waits", "outside"))),
        "its data loader is stuck": Part(0, _other(Doing("waits", "lock", loads=True))),
        "all data loaders are stuck": Part(0, (Doing("waits", "lock", loads=True),) * SIZE),
        "in another collective": Part(0, _other(Doing("waits", "outside", "broadcast", call=7))),
        "one collective behind": Part(0, _other(Doing("waits", "outside", "all_reduce", call=6))),
        "all wait in the same collective": Part(0, (REDUCES,) * SIZE),
        "all wait for a lock": Part(0, (Doing("waits", "lock"),) * SIZE),
        "in a section with a limit of 300 s": Part(0, _alone(RUNS), section="tokenize", limit_s=300.0),
        "polls for ever": Part(0, _other(Doing("waits", "sleep", every_s=0.3))),
    }.items()
}
"""Hangs after some steps; only the last one shows nothing but the absence of steps."""


@attrs.frozen
class Verdict:
    """A hang that was found.

    Args:
        after_s: seconds since the part began in which it was found.
        cause: as in ``faults/standstill.py``.
        ranks: ranks to blame.
        part: the part.
        at_s: seconds since the run began.
    """

    after_s: float
    cause: str
    ranks: tuple[int, ...]
    part: Part
    at_s: float


class _Host(SystemHost):
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def uniform(self, low: float, high: float) -> float:
        return self._chance.uniform(low, high)


class WatchedRun:
    """One run: its ranks, as the agent sees them, and the master.

    Args:
        seed: of the agent's jitter.
        ceiling_s: the policy file's ceiling; 0: none.
    """

    def __init__(self, seed: int, ceiling_s: float = 0.0) -> None:
        self.now = 1000.0
        self.since = self.now
        self.part = Part(0.0)
        self.steps = 0
        self._mono = 0
        self._sections = [SectionState() for _ in range(SIZE)]
        policy = default_chain()
        declared = msgspec.structs.replace(policy.declared, hangs=DeclaredHangs(ceiling=ceiling_s))
        self._job = JobDriver(1, SIZE, policy=msgspec.structs.replace(policy, declared=declared))
        self._job.start()
        self._master = StandstillWatch(self._job.spec.timing)
        self._agent = ProgressWatch(DEFAULT, SIZE, self, self, _Host(random.Random(seed)))
        self._agent.begin(list(range(SIZE)), 0, self.now)

    # -- ports.Inspector and ports.DeepInspector

    def signs(self) -> tuple[Signs, ...]:
        """See ``ports.Inspector``."""
        return tuple(Signs(active=self._mono, sections=sections) for sections in self._sections)

    def ask_stack(self, local_rank: int, every: bool = False, locked: bool = False) -> bool:
        """See ``ports.Inspector``."""
        return True

    def stack(self, local_rank: int) -> str:
        """See ``ports.Inspector``."""
        doing = self.part.doing[local_rank]
        own = '  File "train.py", line 7 in main\n'
        if doing.op:
            own = f'  File "/torch/distributed/distributed_c10d.py", line 1 in {doing.op}\n{own}'
        if doing.loads:
            own = f'  File "/torch/utils/data/dataloader.py", line 1 in _try_get_data\n{own}'
        return f"Current thread 0x1 (most recent call first):\n{own}"

    def ask_child(self, local_rank: int, pid: int, locked: bool = False) -> bool:
        """See ``ports.DeepInspector``."""
        return False

    def ask_calls(self, local_rank: int) -> bool:
        """See ``ports.DeepInspector``."""
        return True

    def calls(self, local_rank: int) -> tuple[tuple[Call, ...], str]:
        """See ``ports.DeepInspector``."""
        doing = self.part.doing[local_rank]
        return (Call("default_pg", doing.call, doing.op),) if doing.call else (), ""

    # -- samples.Kernel

    def start_time(self, pid: int) -> str:
        """See ``samples.Kernel``."""
        return "1"

    def state(self, pid: int) -> str:
        """See ``samples.Kernel``."""
        return "R" if pid < SIZE and self.part.doing[pid].state == "runs" else "S"

    def native_stack(self, pid: int) -> str:
        return ""

    def wait_of(self, pid: int) -> samples.Wait:
        """See ``samples.Kernel``."""
        doing = self.part.doing[pid - LOADER_PID if pid >= LOADER_PID else pid]
        if doing.loads and pid < SIZE:
            return samples.Wait("outside", self.now + 4.0)
        return samples.Wait(doing.waits, self.since + self.part.seconds if doing.ends else None)

    def usages(self, pids: Sequence[int]) -> tuple[list[samples.Usage], list[sockets.Connection]]:
        """See ``samples.Kernel``."""
        return [self._usage(pid) for pid in pids], []

    def _usage(self, pid: int) -> samples.Usage:
        doing, lasted = self.part.doing[pid], self.now - self.since
        count = int(lasted / doing.every_s) if doing.every_s else 0
        switches = int(self.since * 10) + count
        if doing.state == "runs":
            return samples.Usage(self.now, "R", int(self.now * 10), self.now, 0)
        if doing.loads:  # it wakes up to see whether the process lives
            polls = int(self.since * 10) + int(lasted / 4.0)
            return samples.Usage(self.now, "S", polls, loaders=((LOADER_PID + pid, switches),))
        return samples.Usage(self.now, "S", switches)

    # -- the run

    async def run(self, parts: Iterator[Part]) -> Verdict | None:
        """Run until a hang is found, or to the end of the parts."""
        begun, ticked = self.now, self.now
        for part in parts:
            self._begin(part)
            end = self.now + part.seconds
            if part.suspended:
                self.now = end
            while self.now < end:
                quick = part.seconds < DEFAULT.hang_look_s / 2
                self.now = min(end, self.now + (part.seconds if quick else TICK_S))
                if self.now - ticked >= TICK_S:
                    ticked = self.now
                    found = await self._tick()
                    if found is not None:
                        return Verdict(self.now - self.since, found.cause, found.ranks, part, self.now - begun)
            self._end(part)
        return None

    def _begin(self, part: Part) -> None:
        self.part, self.since = part, self.now
        if part.section:
            now = round(self.now * 1e9)
            deadline = now + round(part.limit_s * 1e9) if part.limit_s is not None else 0
            for local, known in enumerate(self._sections):
                if not part.doing[local].op:
                    self._sections[local] = attrs.evolve(
                        known, name=part.section, began=now, deadline=deadline, changed=now
                    )

    def _end(self, part: Part) -> None:
        now = round(self.now * 1e9)
        for local, known in enumerate(self._sections):
            if known.name:
                took = now - known.began
                past = {each.name: each for each in known.past}
                before = past.get(known.name, PastSection(known.name, 0, 0))
                past[known.name] = PastSection(known.name, before.count + 1, max(before.longest, took))
                self._sections[local] = SectionState(
                    changed=now, covered=known.covered + took, trains=True, past=tuple(past.values())
                )
        if part.steps:
            self.steps += 1
            self._mono = now

    async def _tick(self) -> StandstillJudged | None:
        quiet = self._agent.check(self._pages(), self.now)
        if quiet:
            await self._agent.sample(quiet, self._pages, lambda: self.now)
        state = self._job.state
        self._master.heard(NODE, state.rounds.newest, self._agent.changes(), self.now)
        fact = self._master.look(state, self.now)
        if fact is None:
            return None
        events = self._job.own(fact)
        judged = [event.data for event in events if isinstance(event.data, StandstillJudged)]
        return next((data for data in judged if data.verdict == "hang"), None)

    def _pages(self) -> list[Progress | None]:
        if not self.steps:
            return [None] * SIZE
        page = Progress(steps=self.steps, step=self.steps, absolute=True, mono=self._mono, loss=None)
        return [page] * SIZE


def healthy(seed: int, hours: float) -> Iterator[Part]:
    """A run without a hang."""
    script, lasted = Script(random.Random(seed)), 0.0
    parts: Callable[[], Iterator[Part]] = script.begin
    step = 0
    while lasted < hours * 3600.0:
        for part in parts():
            lasted += part.seconds
            yield part
        step += 1
        number = step
        parts = lambda: iter([script.step(), *script.pauses(number)])  # noqa: E731, B023


def hung(seed: int, name: str, hours: float) -> Iterator[Part]:
    """A run that ends with a hang."""
    yield from healthy(seed, hours)
    while True:
        yield HANGS[name]


def watched(seed: int, parts: Iterator[Part], ceiling_s: float = 0.0) -> Verdict | None:
    """Run the parts, and return the first hang that was found."""
    answer_s, watch_progress.ANSWER_S = watch_progress.ANSWER_S, 0.0  # type: ignore[misc]
    try:
        return asyncio.run(WatchedRun(seed, ceiling_s).run(parts))
    finally:
        watch_progress.ANSWER_S = answer_s  # type: ignore[misc]


def result(run: Verdict | None) -> dict[str, Any]:
    """A verdict as plain data."""
    return {} if run is None else {"cause": run.cause, "ranks": run.ranks, "after_s": round(run.after_s, 1)}
