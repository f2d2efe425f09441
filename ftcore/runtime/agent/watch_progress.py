"""Watches the workers of a node and tells what those do that show no progress.

A sign of progress is a step, a backward pass or a report (``shm/page.py``). Workers without a sign for ``hang_look_s``
are looked at: their Python stacks, their counters (``samples.py``) and their connections (``unanswered.py``), again and
again, more and more rarely. What is found goes to the master with the heartbeats; what it means is decided there
(``faults/standstill.py``).

How long steps usually take is learned (``faults/detectors/no_progress.py``): only a step that is overdue by that is
worth an alert.

House rules: a stack is asked for by a signal, which makes the main thread run. So what a worker has used is compared
from behind one question to before the next. A worker that connects in vain is not asked: the signal would end its
attempt (``EINTR``), and it would wait before the next. Samples are not evenly spaced: what a worker does regularly must
not fall between question and answer each time. No question ends a worker: first comes the one that Python answers, and
only to who does not answer it the other (``warm/stacks.py``); that one tells of the main thread alone, and a worker
whose other threads are not known waits for what they may wait for. Time in which nobody looked (the node, or the agent,
was stopped) counts for nobody.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from ftcore.events.worker import Stand
from ftcore.faults.cuts import NO_NET, Net
from ftcore.faults.detectors.no_progress import NoProgress
from ftcore.faults.frames import Place, place_of
from ftcore.faults.standstill import merged
from ftcore.ports import Host, Inspector, Progress, Signs
from ftcore.runtime.agent import samples
from ftcore.runtime.agent.unanswered import UnansweredWatch
from ftcore.runtime.host import HERE
from ftcore.timing import Timing

LOOKS: Final = 20
"""Looks in ``hang_look_s``; so much of it something may be noticed late."""

LOOK_S_MAX: Final = 1.0
ANSWER_S: Final = 0.1
"""How long workers have to write their stacks."""

STACKS_NAME: Final = "stacks.txt"
"""Beside a worker's output: the last stacks that it was seen with; at most ``stackfile.STACK_BYTES_MAX``."""

RARER: Final = 10
"""Samples after which they are made half as often, and so on."""

RARELY_S: Final = 6.0
"""Times ``hang_look_s``: the longest time between two samples."""

UNEVEN: Final = (0.7, 1.3)
"""Times the time between two samples."""

_STOPPED: Final = {"T": "stopped", "t": "traced"}


@attrs.define
class _Watched:
    """A local rank; what was learned of its steps outlives its process. Times are monotonic seconds."""

    learned: NoProgress
    pid: int = 0
    born: str = ""
    page: Progress | None = None
    signed: float = 0.0
    signs: Signs = attrs.field(factory=Signs)
    used: samples.Usage | None = None
    place: Place = attrs.field(factory=Place)
    wait: samples.Wait = attrs.field(factory=samples.Wait)
    state: str = ""
    still_since: float = 0.0
    held_since: float = 0.0
    overdue: bool = False
    file: str = ""
    kept: bool = False
    shown: bool = False

    def shift(self, seconds: float) -> None:
        """Time has passed in which nobody looked."""
        self.signed += seconds
        self.still_since += seconds
        self.held_since += seconds
        self.learned.excuse(seconds)
        self.used = None

    def moved(self, now: float) -> None:
        """It does something."""
        self.still_since = self.held_since = now
        self.used, self.place, self.wait, self.state, self.overdue = None, Place(), samples.Wait(), "", False


class ProgressWatch:
    """Watches one node.

    Args:
        timing: the job's time constants.
        slots: workers of the node.
        inspector: reads the workers' signs and stacks; None: there are none.
        kernel: tells of processes.
        host: the machine that it is on.
    """

    def __init__(
        self,
        timing: Timing,
        slots: int,
        inspector: Inspector | None = None,
        kernel: samples.Kernel = samples,
        host: Host = HERE,
    ) -> None:
        self._timing = timing
        self._kernel = kernel
        self._host = host
        self._inspector = inspector
        self._workers = [
            _Watched(NoProgress(floor_s=timing.hang_idle_s, cap_s=timing.hang_ceiling_s)) for _ in range(slots)
        ]
        self._base_rank = 0
        self._looked: float | None = None
        self._sampled = 0.0
        self._samples = 0
        self._uneven = 1.0
        self._stands: tuple[Stand, ...] = ()
        self._unanswered = UnansweredWatch()
        self.net = NO_NET
        """What the kernel says of the connections of workers that show no progress."""
        self._news = False
        self.look_s: float = min(timing.hang_look_s / LOOKS, LOOK_S_MAX)
        """How often to look."""

    def begin(self, pids: Sequence[int], base_rank: int, now: float, dirs: Sequence[str] = ()) -> None:
        """Workers of a new round run.

        Args:
            pids: their process ids, by local rank.
            base_rank: global rank of the first one.
            now: monotonic seconds.
            dirs: where each worker's output is, and its stacks are kept; empty: they are not.
        """
        files = [str(Path(one) / STACKS_NAME) for one in dirs] or [""] * len(pids)
        self._base_rank, self._looked, self._samples = base_rank, now, 0
        self._workers = [
            _Watched(worker.learned, pid, self._kernel.born(pid), signed=now, file=file)
            for worker, pid, file in zip(self._workers, pids, files, strict=True)
        ]
        self._set(())

    def forget(self) -> None:
        """Another master listens: it is told everything."""
        self._news = bool(self._stands)

    def news(self) -> tuple[Stand, ...] | None:
        """What the next heartbeat tells; None: as before."""
        news, self._news = self._news, False
        return self._stands if news else None

    async def look(self, pages: Callable[[], Sequence[Progress | None]], now: Callable[[], float]) -> None:
        """Look at the workers, and sample those that show no progress.

        Args:
            pages: tells what their pages say, by local rank.
            now: tells monotonic seconds, of the pages' clock.
        """
        at = now()
        self._excuse(at)
        self._take_all(pages(), at)
        quiet = self._quiet(at)
        if not quiet:
            self._samples = 0
            if self._stands:
                self._set(())
            return
        if self._samples and at - self._sampled < self._uneven * self._pause_s(quiet):
            return
        self._sampled, self._samples, self._uneven = at, self._samples + 1, self._host.uniform(*UNEVEN)
        workers = self._workers
        signed = [worker.signed for worker in workers]
        net, kept, at = await self._sample([workers[local] for local in quiet], quiet, now)
        if workers is self._workers:
            self._take_all(pages(), now())  # a sample takes its time where a host hardly answers
            lasting = [local for local in quiet if workers[local].signed == signed[local]]
            self._set(merged(self._stand(local, at) for local in lasting), net if lasting else NO_NET)
        await asyncio.get_running_loop().run_in_executor(None, _keep, kept)  # a disk that stalls holds up no word

    def _take_all(self, pages: Sequence[Progress | None], now: float) -> None:
        signs = self._inspector.signs() if self._inspector is not None else ()
        for local, (worker, page) in enumerate(zip(self._workers, pages, strict=False)):
            self._take(worker, page, signs[local] if local < len(signs) else Signs(), now)

    def _set(self, stands: tuple[Stand, ...], net: Net = NO_NET) -> None:
        self._stands, self.net, self._news = stands, net, True

    def _pause_s(self, quiet: Sequence[int]) -> float:
        """How long until the next sample: soon where something may be told soon, else less and less often."""
        look_s = self._timing.hang_look_s
        if self.net.unanswered or any(self._workers[local].state in _STOPPED.values() for local in quiet):
            return look_s / 4
        return float(min(look_s / 2 * (1 << min(self._samples // RARER, 8)), RARELY_S * look_s))

    def _excuse(self, now: float) -> None:
        if self._looked is not None and now - self._looked > 5 * self.look_s + LOOK_S_MAX:
            for worker in self._workers:
                worker.shift(now - self._looked)
        self._looked = now

    def _take(self, worker: _Watched, page: Progress | None, signs: Signs, now: float) -> None:
        if page is not None and page.steps and (worker.page is None or page.steps != worker.page.steps):
            if worker.page is None:
                worker.learned.begin(page.mono / 1e9, page.step - 1)
            worker.learned.observe(page.step, page.mono / 1e9)
            worker.page = page
        signed = max(signs.active, worker.page.mono if worker.page is not None else 0, signs.ended) / 1e9
        worker.signs = signs
        if signed > worker.signed:
            worker.signed = signed
            worker.moved(now)

    def _quiet(self, now: float) -> list[int]:
        """Who shows no progress; if one is stopped, all, to tell who waits for it."""
        look_s = self._timing.hang_look_s
        states = [self._kernel.state(worker.pid) if self._lives(worker) else "X" for worker in self._workers]
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
        self, workers: Sequence[_Watched], quiet: Sequence[int], now: Callable[[], float]
    ) -> tuple[Net, dict[str, str], float]:
        """Sample the workers; returns what their connections say, the stacks to keep by file, and the time of it."""
        loop = asyncio.get_running_loop()
        before, found = await loop.run_in_executor(None, self._kernel.usages, [worker.pid for worker in workers])
        waits = [self._kernel.wait_of(worker.pid) for worker in workers]
        opening = {one.inode for one in found if one.opening and one.retries}
        connects = [not opening.isdisjoint(used.inodes) for used in before]
        seen = zip(quiet, connects, waits, strict=True)
        asked = [local for local, busy, wait in seen if not busy and self._ask(local, True, wait.kind == "lock")]
        if asked:
            await asyncio.sleep(ANSWER_S)
        if [local for local in asked if not self._answer(local) and self._ask(local, False)]:
            await asyncio.sleep(ANSWER_S)
        after, found = await loop.run_in_executor(None, self._kernel.usages, [worker.pid for worker in workers])
        at, kept = now(), {}
        for worker, local, used, rested, wait in zip(workers, quiet, before, after, waits, strict=True):
            dump = self._answer(local) if local in asked else ""
            place = place_of(dump)
            if worker.pid == self._workers[local].pid:
                if _is_news(worker, place):
                    kept[worker.file] = f"rank {self._base_rank + local}, pid {worker.pid}\n{dump}"
                    worker.kept, worker.shown = True, place.talks is not None
                self._weigh(worker, place, used, rested, wait, at)
        first = self._base_rank
        ranks = {inode: first + local for local, used in zip(quiet, after, strict=True) for inode in used.inodes}
        return self._unanswered.net(found, ranks, at), kept, at

    def _lives(self, worker: _Watched) -> bool:
        return worker.born != "" and self._kernel.born(worker.pid) == worker.born

    def _ask(self, local: int, every: bool, locked: bool = False) -> bool:
        return self._inspector is not None and self._inspector.ask_stack(local, every, locked)

    def _answer(self, local: int) -> str:
        return self._inspector.stack(local) if self._inspector is not None else ""

    def _weigh(
        self, worker: _Watched, place: Place, used: samples.Usage, rested: samples.Usage, wait: samples.Wait, now: float
    ) -> None:
        """Compare a sample with the one before it."""
        wait = attrs.evolve(wait, kind="outside") if place.talks is not False and wait.kind == "lock" else wait
        first = worker.used is None
        if first or place.frames != worker.place.frames:
            worker.held_since = now
        if worker.state not in _STOPPED.values():
            ran = worker.used is not None and samples.progressed(worker.used, used, wait)
            if first or ran or place.frames != worker.place.frames:
                worker.still_since = now
            worker.state = "disk" if used.state == "D" else "runs" if ran or used.state == "R" else "waits"
        if worker.signs.ended and worker.state in ("waits", "runs"):
            worker.state = "ended"
        if not self._lives(worker):
            worker.state = "gone"
        worker.used, worker.place, worker.wait = rested, place, wait
        deadline = worker.learned.deadline()
        late = worker.page is not None and deadline is not None and now > deadline
        if late and not worker.overdue and now - worker.signed >= self._timing.hang_idle_s:
            worker.overdue = True
            worker.learned.overdue()

    def _stand(self, local: int, now: float) -> Stand:
        worker = self._workers[local]
        ends_at, timeout = worker.wait.ends_at, worker.signs.timeout
        return Stand(
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
        )


def _is_news(worker: _Watched, place: Place) -> bool:
    """Whether a worker's stacks are to be kept: from the second sample on, where they say more than what is kept."""
    if worker.used is None or not place.frames or not worker.file:
        return False
    return not worker.kept or place.frames != worker.place.frames or (place.talks is not None and not worker.shown)


def _keep(texts: Mapping[str, str]) -> None:
    """Write the stacks of workers, each in place of what was there."""
    for file, text in texts.items():
        with contextlib.suppress(OSError):
            Path(file).write_text(text)
