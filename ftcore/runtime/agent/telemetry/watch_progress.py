"""Samples the workers of a node that show no progress.

A sign of progress is a step, a backward pass, a report, or the begin or end of a section (``shm/page.py``). Workers
without a sign for ``hang_look_s`` are sampled repeatedly, at growing intervals: their Python stacks, their counters
(``samples.py``), their connections (``unanswered.py``), and the collectives that they have begun. The results go to the
master with the heartbeats, and the master interprets them (``faults/standstill.py``).

The usual duration of steps and of sections is learned (``faults/detectors/no_progress.py``, ``sections.py``): only a
step that exceeds it causes an alert, and the master acts on the limits that follow from it. A rank that waits for its
data loader is active as long as the loader's processes are (``loaders.py``).

House rules:

- A stack is requested by a signal, which makes the main thread run. So usage is compared from after one request to
  before the next.
- A worker whose connection attempts get no answer is not signalled: the signal would interrupt its attempt (``EINTR``),
  and the worker would pause before the next one.
- Sampling intervals are jittered, so that periodic activity of a worker does not always fall between request and
  answer.
- No request ends a worker: the signal that Python handles comes first, the other one only if there is no answer
  (``warm/stacks.py``). The second one shows only the main thread; then a lock counts as a wait for an external event.
- Time in which no sample was taken (the node or the agent was stopped) does not count.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from ftcore.events.worker import RankState
from ftcore.faults.cuts import NO_NET, Net
from ftcore.faults.detectors.no_progress import NoProgress
from ftcore.faults.detectors.sections import SectionLimits
from ftcore.faults.frames import StackPosition, place_of
from ftcore.faults.standstill import merged
from ftcore.ports import DeepInspector, Host, Inspector, Progress, Signs
from ftcore.runtime.agent.telemetry import samples
from ftcore.runtime.agent.telemetry.loaders import LoaderWatch, described
from ftcore.runtime.agent.telemetry.native import NATIVE_MAX, NativeStacks
from ftcore.runtime.agent.telemetry.unanswered import UnansweredWatch
from ftcore.runtime.agent.telemetry.watch_notes import PAGES_POLL_S
from ftcore.runtime.host import THIS_HOST
from ftcore.shm.calls import Call
from ftcore.shm.sections import FIRST_STEP
from ftcore.timing import Timing

CHECKS: Final = 20
"""Checks per ``hang_look_s``; determines the delay of a detection."""

CHECK_S_MAX: Final = 1.0
ANSWER_S: Final = 0.1
"""Time in seconds for workers to write their stacks."""

STACKS_NAME: Final = "stacks.txt"
"""File beside a worker's output with its last stacks, at most ``stackfile.STACK_BYTES_MAX``."""

CALLS_NAME: Final = "collectives.json"
"""File beside it with the newest entries of torch's flight recorder, if it has any."""

DOUBLE_AFTER: Final = 10
"""Number of samples after which the interval doubles, repeatedly."""

INTERVAL_MAX: Final = 6.0
"""Longest interval between two samples, as a multiple of ``hang_look_s``."""

JITTER: Final = (0.7, 1.3)
"""Range of the jitter factor of the interval."""

_STOPPED: Final = {"T": "stopped", "t": "traced"}


@attrs.define
class _WatchedRank:
    """A local rank; what is learned of it outlives its process. Times are monotonic seconds."""

    learned: NoProgress
    limits: SectionLimits
    pid: int = 0
    started: str = ""
    began: float = 0.0
    page: Progress | None = None
    signed: float = 0.0
    signs: Signs = attrs.field(factory=Signs)
    used: samples.Usage | None = None
    place: StackPosition = attrs.field(factory=StackPosition)
    wait: samples.Wait = attrs.field(factory=samples.Wait)
    state: str = ""
    still_since: float = 0.0
    held_since: float = 0.0
    overdue: bool = False
    file: str = ""
    kept: bool = False
    shown: bool = False
    covered: int = 0
    excused: tuple[int, float] = (0, 0.0)
    calls: tuple[Call, ...] = ()
    loaders: LoaderWatch = attrs.field(factory=LoaderWatch)
    loader: str = ""
    is_read: bool = False
    fresh: bool = True

    def shift(self, seconds: float) -> None:
        """Exclude an interval without samples from all times."""
        self.signed += seconds
        self.still_since += seconds
        self.held_since += seconds
        self.began += seconds
        section = self.signs.sections.began
        self.excused = (section, seconds + (self.excused[1] if self.excused[0] == section else 0.0))
        self.learned.excuse(seconds)
        self.used = None
        self.loaders.forget()

    def moved(self, now: float) -> None:
        """Note activity of the worker."""
        self.woke(now)
        self.still_since = self.held_since = now
        self.used, self.place, self.wait, self.state, self.overdue = None, StackPosition(), samples.Wait(), "", False
        self.calls, self.loader, self.is_read = (), "", False
        self.loaders.forget()

    def woke(self, now: float) -> None:
        """Learn from a time without activity that is over."""
        ends_itself = self.wait.ends_at is not None
        if self.used is not None and self.state in ("waits", "disk") and not self.place.op and not ends_itself:
            self.learned.idled(now - self.still_since)

    def section(self, now: float) -> tuple[str, float | None, float | None, bool]:
        """The section that it is in, the seconds since it began, its limit, and whether the script declared it.

        In no section: the limit of the time without a step.
        """
        at = self.signs.sections
        if at.name:
            excused = self.excused[1] if self.excused[0] == at.began else 0.0
            limit_s = (at.deadline - at.began) / 1e9 if at.deadline else self.limits.limit_s(at.name)
            return at.name, max(0.0, now - at.began / 1e9 - excused), limit_s, at.deadline > 0
        if self.page is None:
            if not at.trains:
                return "", None, None, False
            return FIRST_STEP, now - self.began, self.limits.limit_s(FIRST_STEP), False
        return "", None, self.learned.limit_s(), False

    def is_late(self, now: float) -> bool:
        """Whether the next step is overdue; sections do not count."""
        deadline, sections = self.learned.deadline(), self.signs.sections
        if self.page is None or deadline is None or sections.name:
            return False
        return now > deadline + (sections.covered - self.covered) / 1e9


class ProgressWatch:
    """Watches the workers of one node.

    Args:
        timing: the job's time constants.
        slots: number of workers.
        inspector: reads the workers' signs and stacks; None: unavailable.
        kernel: samples processes.
        host: the node's machine.
    """

    def __init__(
        self,
        timing: Timing,
        slots: int,
        inspector: Inspector | None = None,
        kernel: samples.Kernel = samples,
        host: Host = THIS_HOST,
    ) -> None:
        self._timing = timing
        self._kernel = kernel
        self._host = host
        self._inspector = inspector
        deep: object = inspector
        self._deep = deep if isinstance(deep, DeepInspector) else None
        self._workers = [
            _WatchedRank(
                NoProgress(floor_s=timing.hang_idle_s, cap_s=timing.hang_ceiling_s), SectionLimits(timing.hang_idle_s)
            )
            for _ in range(slots)
        ]
        self._base_rank = 0
        self._checked_at: float | None = None
        self._sampled = 0.0
        self._samples = 0
        self._jitter = 1.0
        self._stands: tuple[RankState, ...] = ()
        self._unanswered = UnansweredWatch()
        self._native = NativeStacks(kernel.native_stack)
        self.net = NO_NET
        """The kernel's view of the connections of workers that show no progress."""
        self._changed = False
        self.check_s: float = min(timing.hang_look_s / CHECKS, CHECK_S_MAX)
        """Interval of ``check``, in seconds."""

    def begin(self, pids: Sequence[int], base_rank: int, now: float, dirs: Sequence[str] = (), how: str = "") -> None:
        """Begin a new round.

        Args:
            pids: process ids of the workers, by local rank.
            base_rank: global rank of the first worker.
            now: monotonic seconds.
            dirs: output directory of each worker, which gets its stacks; empty: stacks are not written.
            how: how they were started: workers that had waited do not show how long a first step takes.
        """
        fresh = "parked" not in how and "prepared" not in how
        files = [str(Path(directory) / STACKS_NAME) for directory in dirs] or [""] * len(pids)
        for worker in self._workers:
            section, section_s, limit_s, declared = worker.section(now)
            if section_s is not None and limit_s is not None and section_s >= limit_s and not declared:
                worker.limits.interrupted(section, section_s)
        self._base_rank, self._checked_at, self._samples = base_rank, now, 0
        self._workers = [
            _WatchedRank(
                worker.learned, worker.limits, pid, self._kernel.start_time(pid), began=now, signed=now, file=file
            )
            for worker, pid, file in zip(self._workers, pids, files, strict=True)
        ]
        for worker in self._workers:
            worker.fresh = fresh
            worker.limits.begin()
        self._set(())

    def forget(self) -> None:
        """Send everything again, to a new master."""
        self._changed = bool(self._stands)

    def changes(self) -> tuple[RankState, ...] | None:
        """The stalled ranks for the next heartbeat; None: unchanged."""
        changed, self._changed = self._changed, False
        return self._stands if changed else None

    def is_due(self, now: float) -> bool:
        """Whether to call ``check`` now, at monotonic seconds, rather than at the next reading of the pages."""
        return self._checked_at is None or now - self._checked_at > self.check_s - PAGES_POLL_S / 2

    def check(self, pages: Sequence[Progress | None], now: float) -> list[int]:
        """Check the workers.

        Args:
            pages: contents of the workers' pages, by local rank.
            now: monotonic seconds, of the pages' clock.

        Returns:
            Local ranks without progress, if they are to be sampled now.
        """
        self._excuse(now)
        self._take_all(pages, now)
        quiet = self._quiet(now)
        if not quiet:
            self._samples = 0
            if self._stands:
                self._set(())
        elif not self._samples or now - self._sampled >= self._jitter * self._pause_s(quiet):
            return quiet
        return []

    async def sample(
        self, quiet: Sequence[int], pages: Callable[[], Sequence[Progress | None]], now: Callable[[], float]
    ) -> None:
        """Sample workers that show no progress.

        Args:
            quiet: their local ranks.
            pages: returns the contents of the workers' pages, by local rank.
            now: returns monotonic seconds, of the pages' clock.
        """
        self._sampled, self._samples, self._jitter = now(), self._samples + 1, self._host.uniform(*JITTER)
        workers = self._workers
        signed = [worker.signed for worker in workers]
        net, kept, at = await self._sample([workers[local] for local in quiet], quiet, now)
        if workers is self._workers:
            self._take_all(pages(), now())  # sampling may take long on an overloaded host
            lasting = [local for local in quiet if workers[local].signed == signed[local]]
            self._set(merged(self._stand(local, at) for local in lasting), net if lasting else NO_NET)
        await asyncio.get_running_loop().run_in_executor(None, _keep, kept)  # the disk may stall

    def _take_all(self, pages: Sequence[Progress | None], now: float) -> None:
        signs = self._inspector.signs() if self._inspector is not None else ()
        for local, (worker, page) in enumerate(zip(self._workers, pages, strict=False)):
            self._take(worker, page, signs[local] if local < len(signs) else Signs(), now)

    def _set(self, stands: tuple[RankState, ...], net: Net = NO_NET) -> None:
        self._stands, self.net, self._changed = stands, net, True

    def _pause_s(self, quiet: Sequence[int]) -> float:
        """Interval until the next sample: short if a worker is stopped or a peer does not answer, else growing."""
        look_s = self._timing.hang_look_s
        if self.net.unanswered or any(self._workers[local].state in _STOPPED.values() for local in quiet):
            return look_s / 4
        return float(min(look_s / 2 * (1 << min(self._samples // DOUBLE_AFTER, 8)), INTERVAL_MAX * look_s))

    def _excuse(self, now: float) -> None:
        if self._checked_at is not None and now - self._checked_at > 5 * self.check_s + CHECK_S_MAX:
            for worker in self._workers:
                worker.shift(now - self._checked_at)
        self._checked_at = now

    def _take(self, worker: _WatchedRank, page: Progress | None, signs: Signs, now: float) -> None:
        sections = signs.sections
        if page is not None and page.steps and (worker.page is None or page.steps != worker.page.steps):
            if worker.page is None:
                worker.learned.begin(page.mono / 1e9, page.step - 1)
                if worker.fresh:
                    worker.limits.took(FIRST_STEP, page.mono / 1e9 - worker.began)
            worker.learned.observe(page.step, page.mono / 1e9, sections.covered / 1e9)
            worker.page, worker.covered = page, sections.covered
        if sections.changed != worker.signs.sections.changed:
            for past in sections.past:
                worker.limits.observe(past.name, past.count, past.longest / 1e9)
        stepped = worker.page.mono if worker.page is not None else 0
        signed = max(signs.active, stepped, signs.ended, sections.changed) / 1e9
        worker.signs = signs
        if signed > worker.signed:
            worker.signed = signed
            worker.moved(now)

    def _quiet(self, now: float) -> list[int]:
        """Local ranks without progress; all ranks if one is stopped, to find those that wait for it."""
        look_s = self._timing.hang_look_s
        alive = [worker.pid if self._is_alive(worker) else 0 for worker in self._workers]
        states = [("" if pid in self._native.reading else self._kernel.state(pid)) if pid else "X" for pid in alive]
        stopped = False
        for worker, state in zip(self._workers, states, strict=True):
            known = _STOPPED.get(state, "")
            if known and known != worker.state:
                worker.moved(now)
                self._samples = 0
            if known or worker.state in _STOPPED.values():
                worker.state = known
            stopped = stopped or known == "stopped"
        return [
            local
            for local, worker in enumerate(self._workers)
            if stopped or worker.state == "traced" or now - worker.signed >= look_s
        ]

    async def _sample(
        self, workers: Sequence[_WatchedRank], quiet: Sequence[int], now: Callable[[], float]
    ) -> tuple[Net, dict[str, str], float]:
        """Sample the workers; returns the state of their connections, the stacks to write by file, and the time."""
        loop = asyncio.get_running_loop()
        before, found = await loop.run_in_executor(None, self._kernel.usages, [worker.pid for worker in workers])
        waits = [self._kernel.wait_of(worker.pid) for worker in workers]
        opening = {connection.inode for connection in found if connection.opening and connection.retries}
        connects = [not opening.isdisjoint(used.inodes) for used in before]
        seen = zip(quiet, connects, waits, strict=True)
        asked = [local for local, busy, wait in seen if not busy and self._ask(local, True, wait.kind == "lock")]
        told = [local for local in quiet if self._ask_calls(local)]
        if asked or told:
            await asyncio.sleep(ANSWER_S)
        if [local for local in asked if not self._answer(local) and self._ask(local, False)]:
            await asyncio.sleep(ANSWER_S)
        dumps = {local: self._answer(local) for local in asked}
        await self._look_at_loaders(zip(workers, quiet, before, strict=True), dumps, now())
        kept = await self._native_stacks(workers)
        after, found = await loop.run_in_executor(None, self._kernel.usages, [worker.pid for worker in workers])
        at = now()
        for worker, local, used, resting, wait in zip(workers, quiet, before, after, waits, strict=True):
            place = place_of(dumps.get(local, ""))
            worker.loaders.disturbed(resting)
            if worker.pid == self._workers[local].pid:
                if _is_worth_keeping(worker, place):
                    below = "".join(f"\nprocess {pid}\n{text}" for pid, text in worker.loaders.stacks.items())
                    kept[worker.file] = f"rank {self._base_rank + local}, pid {worker.pid}\n{dumps[local]}{below}"
                    worker.kept, worker.shown = True, place.talks is not None
                if local in told and self._deep is not None:
                    worker.calls, details = self._deep.calls(local)
                    if details and worker.file:
                        kept[str(Path(worker.file).with_name(CALLS_NAME))] = details
                self._weigh(worker, place, used, resting, wait, at)
        first = self._base_rank
        ranks = {inode: first + local for local, used in zip(quiet, after, strict=True) for inode in used.inodes}
        return self._unanswered.net(found, ranks, at), kept, at

    async def _native_stacks(self, workers: Sequence[_WatchedRank]) -> dict[str, str]:
        """The native stacks of ranks that have not moved since their sample before, once for each, by file."""
        still = [each for each in workers if each.used is not None and each.state not in _STOPPED.values()]
        due = [worker for worker in still if worker.file and not worker.is_read][:NATIVE_MAX]
        for worker in due:
            worker.is_read = True
        return await self._native.of({worker.pid: worker.file for worker in due})

    def _ask_calls(self, local: int) -> bool:
        """Ask a rank that was inside a collective before for its newest ones."""
        return self._deep is not None and self._workers[local].place.op != "" and self._deep.ask_calls(local)

    async def _look_at_loaders(
        self, workers: Iterable[tuple[_WatchedRank, int, samples.Usage]], dumps: Mapping[int, str], now: float
    ) -> None:
        """Look at the loader processes of ranks that wait for them, and get the stacks of stuck ones."""
        asked: list[tuple[_WatchedRank, int, int]] = []
        for worker, local, used in workers:
            if not place_of(dumps.get(local, "")).loads:
                worker.loaders.forget()
                continue
            worker.loaders.rested(used, now)
            stuck = worker.loaders.stuck(now)
            if stuck is None or stuck[0] in worker.loaders.stacks or self._deep is None:
                continue
            locked = self._kernel.wait_of(stuck[0]).kind == "lock"
            if self._deep.ask_child(local, stuck[0], locked):
                asked.append((worker, local, stuck[0]))
        if asked:
            await asyncio.sleep(ANSWER_S)
        for worker, local, pid in asked:
            worker.loaders.stacks[pid] = self._answer(local)
            worker.kept = False

    def _is_alive(self, worker: _WatchedRank) -> bool:
        return worker.started != "" and self._kernel.start_time(worker.pid) == worker.started

    def _ask(self, local: int, every: bool, locked: bool = False) -> bool:
        return self._inspector is not None and self._inspector.ask_stack(local, every, locked)

    def _answer(self, local: int) -> str:
        return self._inspector.stack(local) if self._inspector is not None else ""

    def _weigh(
        self,
        worker: _WatchedRank,
        place: StackPosition,
        used: samples.Usage,
        resting: samples.Usage,
        wait: samples.Wait,
        now: float,
    ) -> None:
        """Update a worker's state by comparing a sample with the previous one."""
        wait = attrs.evolve(wait, kind="outside") if place.talks is not False and wait.kind == "lock" else wait
        first = worker.used is None
        if first or place.frames != worker.place.frames:
            worker.held_since = now
        if worker.state not in _STOPPED.values():
            ran = worker.used is not None and samples.progressed(worker.used, used, wait)
            if first or ran or place.frames != worker.place.frames:
                worker.woke(now)
                worker.still_since = now
            worker.state = "disk" if used.state == "D" else "runs" if ran or used.state == "R" else "waits"
        stuck, worker.loader = worker.loaders.stuck(now), ""
        if stuck is not None and worker.state in ("waits", "runs"):
            wait = self._kernel.wait_of(stuck[0])
            frames = place_of(worker.loaders.stacks.get(stuck[0], "")).where
            worker.state, worker.still_since, worker.loader = "waits", stuck[1], described(stuck[0], wait, frames)
        if worker.signs.ended and worker.state in ("waits", "runs"):
            worker.state = "ended"
        if not self._is_alive(worker):
            worker.state = "gone"
        worker.used, worker.place, worker.wait = resting, place, wait
        if worker.is_late(now) and not worker.overdue and now - worker.signed >= self._timing.hang_idle_s:
            worker.overdue = True
            worker.learned.overdue()

    def _stand(self, local: int, now: float) -> RankState:
        worker = self._workers[local]
        ends_at, timeout = worker.wait.ends_at, worker.signs.timeout
        section, section_s, limit_s, declared = worker.section(now)
        call = worker.calls[0] if worker.calls and worker.place.op else None
        return RankState(
            ranks=(self._base_rank + local,),
            state=worker.state or "runs",
            place=worker.place.where,
            op=worker.place.op,
            waits=worker.wait.kind if worker.state == "waits" else "",
            still_s=round(max(0.0, now - worker.still_since), 1),
            held_s=round(max(0.0, now - worker.held_since), 1),
            silent_s=round(now - worker.signed, 1) if worker.page is not None or worker.signs.active else None,
            overdue=worker.overdue,
            ends_s=round(ends_at - now, 1) if ends_at is not None and worker.state == "waits" else None,
            timeout_s=timeout / 1e9 if timeout else None,
            stack=worker.place.stack,
            stacks=worker.file if worker.kept else "",
            section=section,
            section_s=None if section_s is None else round(section_s, 1),
            limit_s=None if limit_s is None else round(limit_s, 1),
            declared=declared,
            step=worker.page.step if worker.page is not None else None,
            call=call.number if call is not None else None,
            group=call.group if call is not None else "",
            trains=worker.signs.sections.trains,
            loader=worker.loader,
        )


def _is_worth_keeping(worker: _WatchedRank, place: StackPosition) -> bool:
    """Whether to write a worker's stacks: from the second sample on, if they show more than the written ones."""
    if worker.used is None or not place.frames or not worker.file:
        return False
    return not worker.kept or place.frames != worker.place.frames or (place.talks is not None and not worker.shown)


def _keep(texts: Mapping[str, str]) -> None:
    """Write the stacks of workers to their files, replacing earlier contents."""
    for file, text in texts.items():
        with contextlib.suppress(OSError):
            Path(file).write_text(text)
