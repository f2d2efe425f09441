"""Watches the progress of a node's workers and notices when they hang.

One learned deadline per worker (``faults/detectors/no_progress.py``), fed from the progress pages. Only workers that
have completed a step in their round are watched, so a script that reports no steps never hangs here; whether a round
gets to its first step is the master's to judge. How patient the watch is, at the least:

| what the workers without a step do | patience |
|---|---|
| one of them was stopped by a signal or a debugger | ``hang_idle_s`` |
| none uses a processor or moves data, and the whole world is on this node | ``hang_idle_s`` |
| one is busy: it may be evaluating or saving, and the others wait for it | ``hang_busy_s`` |
| none is busy, but there are other nodes that may be | ``hang_busy_s`` |

and never less than ten usual steps, nor than what such a pause took before. A process is busy if it and its descendants
used at least ``BUSY_SHARE`` of a processor, or read and wrote ``BUSY_BYTES_S``, in the last quarter of ``hang_idle_s``.
A worker that has ended is not waited for.

House rules: a stall is told once; it is over when a worker that was in it makes a step. Time in which nobody looked
(the node was suspended) counts for nobody. Python stacks come from the workers themselves (``warm/stacks.py``), where
they can tell them at once.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from ftcore.events.worker import EVIDENCE_BYTES_MAX, FaultObserved
from ftcore.faults.detectors.no_progress import CAP_S, NoProgress
from ftcore.ids import Round
from ftcore.ports import Progress
from ftcore.runtime.agent import processes
from ftcore.runtime.warm.stacks import STACKS
from ftcore.timing import Timing

LOOKS: Final = 20
"""Looks in the shortest patience; so much of it a hang may be told late."""

LOOK_S_MAX: Final = 1.0
STACKS_S: Final = 0.3
"""How long workers have to print their stacks."""

STACK_BYTES: Final = EVIDENCE_BYTES_MAX * 3 // 4
BUSY_SHARE: Final = 0.05
BUSY_BYTES_S: Final = 1e6
STOPPED: Final = ("T", "t")

_WORDS: Final = {
    "R": "computes",
    "S": "waits",
    "D": "waits for a disk or the network and cannot be interrupted",
    "T": "was stopped by a signal",
    "t": "is stopped by a debugger",
}
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_STACK: Final = re.compile(r"^(?:Current thread|Thread) 0x.*", re.MULTILINE | re.DOTALL)


@attrs.frozen(kw_only=True)
class Stall:
    """Workers of this node make no progress.

    Args:
        ranks: their global ranks, the most suspicious first.
        local_ranks: their ranks on the node, in that order.
        pids: their process ids, in that order.
        step: the last step that the first of them completed.
        absolute: that step counts from the start of the training.
        waited_s: seconds since then.
        usual_s: the usual time of a step.
        message: who does what, for people.
    """

    ranks: tuple[int, ...]
    local_ranks: tuple[int, ...]
    pids: tuple[int, ...]
    step: int
    absolute: bool
    waited_s: float
    usual_s: float
    message: str

    def fact(self, node: str, incarnation: str, round_: Round, stacks: str) -> FaultObserved:
        """The fact that is told of it."""
        return FaultObserved(
            node=node,
            incarnation=incarnation,
            round=round_,
            source="detector",
            kind="hang",
            rank=self.ranks[0],
            message=f"{self.message}\n{stacks}".rstrip(),
            step=self.step,
            absolute=self.absolute,
            values={"waited_s": round(self.waited_s, 3), "usual_s": round(self.usual_s, 6)},
        )


@attrs.frozen
class Usage:
    """What a process and its descendants had used at a moment."""

    at: float
    cpu_s: float
    moved: int

    def busy_since(self, before: "Usage") -> bool:
        """Whether much was used since then."""
        seconds = self.at - before.at
        share, moved = (self.cpu_s - before.cpu_s) / seconds, (self.moved - before.moved) / seconds
        return share >= BUSY_SHARE or moved >= BUSY_BYTES_S


@attrs.define
class _Watched:
    """A local rank; what was learned of its steps outlives its process."""

    learned: NoProgress
    pid: int = 0
    born: str = ""
    page: Progress | None = None
    used: Usage | None = None
    busy: bool = True
    told: bool = False

    def waited_s(self, now: float) -> float:
        """Seconds since its last step in this round; 0 if it has made none."""
        return now - self.page.mono / 1e9 if self.page is not None else 0.0

    def is_late(self, now: float, least_s: float = 0.0) -> bool:
        """Whether its next step is overdue."""
        deadline = self.learned.deadline(least_s)
        return self.page is not None and deadline is not None and now > deadline and self.lives

    @property
    def lives(self) -> bool:
        return self.born != "" and _born(self.pid) == self.born


class ProgressWatch:
    """The hang detector of one node.

    Args:
        timing: the job's time constants.
        slots: workers of the node.
    """

    def __init__(self, timing: Timing, slots: int) -> None:
        self._timing = timing
        cap_s = max(CAP_S, timing.hang_busy_s)
        self._workers = [_Watched(NoProgress(floor_s=timing.hang_idle_s, cap_s=cap_s)) for _ in range(slots)]
        self._base_rank = 0
        self._alone = True
        self._looked: float | None = None
        self.look_s: float = min(timing.hang_idle_s / LOOKS, LOOK_S_MAX)
        """How often to look."""

    def begin(self, pids: Sequence[int], base_rank: int, size: int) -> None:
        """Workers of a new round run.

        Args:
            pids: their process ids, by local rank.
            base_rank: global rank of the first one.
            size: workers in the world.
        """
        self._base_rank, self._alone, self._looked = base_rank, size <= len(pids), None
        self._workers = [
            _Watched(worker.learned, pid, _born(pid)) for worker, pid in zip(self._workers, pids, strict=True)
        ]

    def look(self, pages: Sequence[Progress | None], now: float) -> Stall | None:
        """Look at the workers' pages; returns a stall when it is noticed.

        Args:
            pages: what they say, by local rank.
            now: monotonic seconds, of the pages' clock.
        """
        self._excuse(now)
        for worker, page in zip(self._workers, pages, strict=False):
            self._take(worker, page)
            self._weigh(worker, now)
        late = [worker for worker in self._workers if worker.is_late(now)]
        if not late or any(worker.told for worker in late):
            return None
        waited_s = max(worker.waited_s(now) for worker in late)
        # The others of a stall made their last steps at nearly the same time, and one of them may be to blame.
        states = {
            local: _state(worker.pid)
            for local, worker in enumerate(self._workers)
            if worker.waited_s(now) > waited_s / 2 and worker.lives
        }
        patience_s = self._patience_s(states)
        if not any(worker.is_late(now, patience_s) for worker in late):
            return None
        return self._stall(states, now)

    def _excuse(self, now: float) -> None:
        if self._looked is not None and now - self._looked > 5 * self.look_s + LOOK_S_MAX:
            for worker in self._workers:
                worker.learned.excuse(now - self._looked)
        self._looked = now

    def _take(self, worker: _Watched, page: Progress | None) -> None:
        if page is None or not page.steps or (worker.page is not None and page.steps == worker.page.steps):
            return
        if worker.page is None:
            worker.learned.begin(page.mono / 1e9, page.step - 1)
        worker.learned.observe(page.step, page.mono / 1e9)
        worker.page, worker.used, worker.busy, worker.told = page, None, True, False

    def _weigh(self, worker: _Watched, now: float) -> None:
        """Find out whether a worker without steps does anything; it is taken for busy until that is known."""
        idle_s = self._timing.hang_idle_s
        if worker.waited_s(now) < idle_s / 2 or (worker.used is not None and now - worker.used.at < idle_s / 4):
            return
        used = usage(worker.pid, now)
        worker.busy = worker.used is None or used.busy_since(worker.used)
        worker.used = used

    def _patience_s(self, states: Mapping[int, str]) -> float:
        stopped = any(state in STOPPED for state in states.values())
        idle = self._alone and not any(self._workers[local].busy for local in states)
        return self._timing.hang_idle_s if stopped or idle else self._timing.hang_busy_s

    def _stall(self, states: Mapping[int, str], now: float) -> Stall:
        workers = self._workers
        order = sorted(states, key=lambda local: _suspicion(workers[local], states[local]))
        for local in order:
            workers[local].told = True
            workers[local].learned.overdue()
        first = workers[order[0]]
        assert first.page is not None, "a worker that waits has stepped"
        waited_s, usual_s = first.waited_s(now), first.learned.usual_s() or 0.0
        ranks = [self._base_rank + local for local in order]
        does = [f"rank {rank} {_WORDS.get(states[local], 'ends')}" for rank, local in zip(ranks, order, strict=True)]
        told = f"no step for {waited_s:.1f} s after step {first.page.step}, where {usual_s:.3g} s is usual"
        return Stall(
            ranks=tuple(ranks),
            local_ranks=tuple(order),
            pids=tuple(workers[local].pid for local in order),
            step=first.page.step,
            absolute=first.page.absolute,
            waited_s=waited_s,
            usual_s=usual_s,
            message=f"{told}: {'; '.join(does)}",
        )


def _suspicion(worker: _Watched, state: str) -> tuple[bool, bool, int]:
    """The smaller, the more suspicious: what was stopped, what is busy while others wait, what is behind."""
    assert worker.page is not None
    return state not in STOPPED, not worker.busy, worker.page.mono


async def stacks(stall: Stall, tail: Callable[[int, int], str]) -> str:
    """The Python stacks of the stalled workers, as far as they can tell them at once; empty if none can.

    Args:
        stall: the workers.
        tail: the last output of a worker: its local rank, at most so many bytes.
    """
    asked = []
    for rank, local, pid in zip(stall.ranks, stall.local_ranks, stall.pids, strict=True):
        if _listens(pid):
            processes.kill(pid, STACKS)
            asked.append((rank, local))
    if not asked:
        return ""
    await asyncio.sleep(STACKS_S)
    room = max(STACK_BYTES // len(asked), STACK_BYTES // 4)
    found = []
    for rank, local in asked[: STACK_BYTES // room]:
        stack = _STACK.search(tail(local, EVIDENCE_BYTES_MAX))
        if stack is not None:  # the thread that took the signal, as a rule the main one, is printed last
            found.append(f"rank {rank}:\n{stack[0].strip().encode()[-room:].decode(errors='ignore')}")
    return "\n".join(found)


def usage(pid: int, now: float) -> Usage:
    """What a process and its descendants have used by now; what cannot be read counts as nothing."""
    cpu_s, moved = 0.0, 0
    for one in (pid, *processes.descendants(pid, ())):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = _stat(one)
            cpu_s += (int(fields[11]) + int(fields[12])) * _TICK_S
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{one}/io", "rb") as file:
                words = file.read().split()
            moved += int(words[1]) + int(words[3])
    return Usage(now, cpu_s, moved)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state on. Raises ``OSError``."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].decode("ascii").split()


def _state(pid: int) -> str:
    try:
        return _stat(pid)[0]
    except (OSError, IndexError):
        return "X"


def _born(pid: int) -> str:
    """When a process started, as the kernel counts; empty if it has ended. Tells two processes of one id apart."""
    try:
        fields = _stat(pid)
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return ""


def _listens(pid: int) -> bool:
    """Whether the process catches ``STACKS``, which would end it otherwise, and is not stopped."""
    try:
        if _state(pid) in STOPPED:
            return False
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration, ValueError):
        return False
    return bool(caught >> (STACKS - 1) & 1)
