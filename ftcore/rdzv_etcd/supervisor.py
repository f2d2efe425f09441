"""``ports.Supervisor`` for a node whose workers are torchrun's: what is to be done is said to torchrun, by ``channel``.

What torchrun cannot or does not say in time is seen here. A worker's end shows on its pidfd, and its code in ``/proc``
until torchrun collects it; so peers hear of a failure while torchrun still winds its own workers up. Success is
torchrun's word alone. When torchrun is killed, its workers are killed here: nobody else would. Those that it has
started and not named yet are found by a mark in their environment (``orphans.py``). The node leaves when none is left.

| order | is done by |
|---|---|
| start | a world for the rendezvous in which torchrun waits; answered by its first look at the new workers |
| stop | asking torchrun to come to the rendezvous; after the grace, killing the workers that it still has |
| open a store | torchrun, which has torch in memory already |

House rule: workers that torchrun ends because another one failed are nobody's news.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import structlog

from ftcore.errors import UsageError
from ftcore.ids import Round
from ftcore.ports import Launch, Progress, WorkerExit
from ftcore.rdzv_etcd import channel
from ftcore.rdzv_etcd.orphans import MARK, Children
from ftcore.runtime.agent.environment import RESUME_STEP, SKIP
from ftcore.runtime.wire import WITHHELD

_EXIT_CODE = 49
"""Place of the exit code in ``/proc/PID/stat``, counted from the state."""

SWEEP_S = 10.0
"""How long workers that were killed may take to be gone, before the node leaves all the same."""

LOOK_S = 0.02
CLEAN_LOOKS = 2
"""How often in a row nothing may be found: a process that is just being replaced (``execve``) shows no environment."""

logger = structlog.get_logger()

TAIL_FILES = ("stderr.log", "stdout.log")
"""Beside a worker's error file, if torchrun was told to redirect or to tee."""


@attrs.define
class _Worker:
    local_rank: int
    pid: int
    pidfd: int = -1
    error_file: str = ""
    over: bool = False
    code: int | None = None


@attrs.frozen(kw_only=True)
class Ways:
    """What the supervisor tells the agent beside the answers to orders; each is called in the event loop.

    Args:
        gave_up: torchrun starts no more workers: reason and its exit code.
        leave: torchrun ends by itself, and the job may go on without this node: the reason.
        lost: torchrun died: the reason.
        close: somebody closed the rendezvous.
        why_no_world: why there is no world yet, or an empty text if there is one.
    """

    gave_up: Callable[[str, int], None]
    leave: Callable[[str], None]
    lost: Callable[[str], None]
    close: Callable[[], None]
    why_no_world: Callable[[], Any]


class TorchrunSupervisor:
    """See the module. Made inside the agent's event loop.

    Args:
        peer: the channel to torchrun; closed by the caller.
        slots: workers of the node.
        ways: to the agent.
        children: finds the workers that torchrun has not named yet.
    """

    def __init__(self, peer: socket.socket, slots: int, ways: Ways, children: Children) -> None:
        peer.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._slots = slots
        self._ways = ways
        self._children = children
        self._round = Round(0)
        self._workers: list[_Worker] = []
        self._active = self._failed = self._done = self._gone = False
        self._idle = asyncio.Event()
        self._begun: asyncio.Future[tuple[int, ...]] | None = None
        self._opening: dict[int, asyncio.Future[int]] = {}
        self._news: asyncio.Queue[WorkerExit | Callable[[], None] | None] = asyncio.Queue()
        self._stopping = asyncio.Lock()
        self._kill_at = float("inf")
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._loop.add_reader(peer.fileno(), self._read)
        if children.pidfd >= 0:
            self._loop.add_reader(children.pidfd, self._died)

    # -- the port

    async def start(self, launch: Launch) -> tuple[tuple[int, ...], str]:
        """See ``ports.Supervisor``. Waits until torchrun is at the rendezvous."""
        await self.stop(0.0)
        await self._idle.wait()
        if self._gone or self._done:
            raise UsageError("torchrun starts no more workers on this node")
        self._forget_workers()
        self._round, self._active, self._failed = launch.round, True, False
        self._idle.clear()
        self._begun = self._loop.create_future()
        self._say({"world": _world(launch, self._children.mark(launch.round))})
        try:
            return await self._begun, "torchrun"
        finally:
            self._begun = None

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        """See ``ports.Supervisor``. A second call while one waits shortens its grace."""
        self._kill_at = min(self._kill_at, self._loop.time() + grace_s)
        self._changed.set()
        async with self._stopping:
            try:
                return await self._stop()
            finally:
                self._kill_at = float("inf")

    async def _stop(self) -> tuple[int | None, ...]:
        if self._sweeping is not None:
            await self._sweeping
        if not self._active:
            return ()
        before = [worker.over for worker in self._workers]
        self._active = False
        if not self._idle.is_set():
            self._say({"restart": 1})
        while not self._idle.is_set():
            left = self._kill_at - self._loop.time()
            if left <= 0 and not self._kill():
                break  # torchrun itself hangs, but nothing of it trains
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else 1.0):
                    await self._changed.wait()
        for worker in self._workers:
            if not worker.over and _is_dead(worker.pidfd):
                self._over(worker)  # the event loop has not come to it yet
        if self._done:
            self._ways.leave("its workers had ended with code 0 when the others began anew")
        return tuple(None if was else worker.code for worker, was in zip(self._workers, before, strict=False))

    async def exits(self) -> AsyncIterator[WorkerExit]:
        """See ``ports.Supervisor``. Ends after ``close``."""
        while (news := await self._news.get()) is not None:
            if isinstance(news, WorkerExit):
                yield news
            else:
                news()

    def progress(self) -> tuple[Progress | None, ...]:
        """See ``ports.Supervisor``: torchrun's workers have no pages."""
        return (None,) * self._slots

    def tail(self, local_rank: int, limit: int) -> str:
        """See ``ports.Supervisor``. Only if torchrun writes the worker's output to files."""
        error_file = self.error_file(local_rank)
        for name in TAIL_FILES if error_file else ():
            with contextlib.suppress(OSError), Path(error_file).with_name(name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
                if data := file.read(limit):
                    return data.decode(errors="replace").encode()[-limit:].decode(errors="ignore")
        return ""

    def error_file(self, local_rank: int) -> str:
        """See ``ports.Supervisor``."""
        return next((worker.error_file for worker in self._workers if worker.local_rank == local_rank), "")

    async def open_store(self, round_: Round, host: str) -> tuple[str, int]:
        """See ``ports.Supervisor``."""
        answer: asyncio.Future[int] = self._loop.create_future()
        self._opening[round_] = answer  # stays open if torchrun dies: the node is lost, and that is what is told
        self._say({"open": round_, "host": host})
        try:
            return host, await answer
        finally:
            del self._opening[round_]

    async def close(self) -> None:
        """See ``ports.Supervisor``: nothing of torchrun's that this process knows of is left if torchrun is gone."""
        if self._gone:
            self._kill()
        self._loop.remove_reader(self._peer.fileno())
        self._children.close(self._loop.remove_reader)
        for task in self._tasks:
            task.cancel()
        self._forget_workers()
        self._news.put_nowait(None)

    # -- what torchrun says

    def _say(self, message: dict[str, Any]) -> None:
        channel.send(self._peer, message)

    def _read(self) -> None:
        while True:
            try:
                message = channel.receive(self._peer)
            except BlockingIOError:
                return
            if message is None:
                self._loop.remove_reader(self._peer.fileno())
                self._lost()
                return
            self._take(message)

    def _died(self) -> None:
        """Torchrun is dead; a process that it was about to start may hold its end of the channel open."""
        self._loop.remove_reader(self._children.pidfd)
        self._read()
        self._lost()

    def _take(self, said: dict[str, Any]) -> None:
        if "next" in said:
            self._came_back(said["next"])
        elif "running" in said:
            self._run_now({int(rank): int(pid) for rank, pid in said["running"].items()})
        elif "unusable" in said:
            self._cannot_begin(str(said["unusable"]))
        elif "store" in said:
            self._opened(int(said["store"]), said.get("port"), str(said.get("error", "")))
        elif "expired" in said:
            task = self._loop.create_task(self._explain())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif "close" in said:
            self._ways.close()
        else:
            self._ended(said)

    def _run_now(self, pids: Mapping[int, int]) -> None:
        if not self._workers:
            for local_rank, pid in sorted(pids.items()):
                self._workers.append(self._watch(local_rank, pid))
        self._begin()

    def _begin(self) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(tuple(worker.pid for worker in self._workers))

    def _cannot_begin(self, reason: str) -> None:
        self._active = False
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(UsageError(reason))
        self._now_idle()

    def _came_back(self, failures: Sequence[Mapping[str, Any]]) -> None:
        """Torchrun waits at the rendezvous: none of its workers runs."""
        self._account(failures)
        if self._active and not self._failed:
            self._emit(0, 0, -signal.SIGTERM)  # torchrun has stopped them for a reason of its own
        self._begin()
        self._now_idle()

    def _ended(self, said: Mapping[str, Any]) -> None:
        """Torchrun starts no more workers."""
        self._account(said.get("failures", ()))
        self._begin()
        if "done" in said:
            self._done = True
            if self._active:
                for local_rank in range(self._slots):
                    self._emit(local_rank, 0, 0)
            else:
                self._news.put_nowait(lambda: self._ways.leave("torchrun has ended"))
        elif "gave_up" in said:
            reason = str(said["gave_up"])
            self._news.put_nowait(lambda: self._ways.gave_up(reason, 1))
        else:
            reason = f"torchrun ended: {said.get('leaving', 'it did not say why')}"
            self._news.put_nowait(lambda: self._ways.leave(reason))
        self._now_idle()

    def _lost(self) -> None:
        """Torchrun is gone without a word, or after a signal.

        A start and a store that it was asked for stay unanswered: nothing is known of them but that the node is lost.
        """
        if self._gone:
            return
        self._gone = True
        self._sweeping = self._loop.create_task(self._sweep())
        self._now_idle()
        self._ways.lost("its torchrun is gone, without a word")

    async def _sweep(self) -> None:
        """End what a dead torchrun has left running, and look until nothing is found any more."""
        until = self._loop.time() + SWEEP_S
        clean = 0
        while clean < CLEAN_LOOKS:
            clean = 0 if self._kill() else clean + 1
            if self._loop.time() > until:
                logger.error("workers of a torchrun that is gone do not die", pids=self._kill())
                break
            await asyncio.sleep(LOOK_S)
        self._active = False

    def _now_idle(self) -> None:
        self._idle.set()
        self._changed.set()

    def _opened(self, round_: int, port: int | None, error: str) -> None:
        answer = self._opening.get(round_)
        if answer is None or answer.done():
            return
        if port is None:
            answer.set_exception(UsageError(f"no store for round {round_} can be opened: {error}"))
        else:
            answer.set_result(port)

    async def _explain(self) -> None:
        reason = await self._ways.why_no_world()
        if reason and self._idle.is_set():
            self._say({"timeout": reason})

    # -- workers

    def _watch(self, local_rank: int, pid: int) -> _Worker:
        worker = _Worker(local_rank, pid, error_file=_error_file(pid))
        try:
            worker.pidfd = os.pidfd_open(pid)
            self._loop.add_reader(worker.pidfd, self._over, worker)
        except OSError:
            worker.over = True  # torchrun says how
        return worker

    def _over(self, worker: _Worker) -> None:
        """A worker's process has ended; who is too late for its code hears it from torchrun."""
        self._loop.remove_reader(worker.pidfd)
        worker.over = True
        self._changed.set()
        code = _exit_code(worker.pid)
        if code:
            self._fail(worker, code)

    def _account(self, failures: Sequence[Mapping[str, Any]]) -> None:
        """Take in how torchrun says that workers ended."""
        for failure in failures:
            local_rank, pid = int(failure["local_rank"]), int(failure["pid"])
            worker = next((each for each in self._workers if each.pid == pid), None)
            if worker is None and self._begun is not None and not self._begun.done():
                worker = _Worker(local_rank, pid)  # it ended before torchrun's first look
                self._workers.append(worker)
            if worker is None or worker.code is not None:
                continue
            worker.error_file = worker.error_file or str(failure["error_file"])
            self._fail(worker, int(failure["exitcode"]))

    def _fail(self, worker: _Worker, code: int) -> None:
        worker.code = code
        if self._active and not (self._failed and code == -signal.SIGTERM):
            self._emit(worker.local_rank, worker.pid, code)

    def _emit(self, local_rank: int, pid: int, code: int) -> None:
        self._failed = self._failed or code != 0
        mono = time.monotonic_ns()
        self._news.put_nowait(WorkerExit(round=self._round, local_rank=local_rank, pid=pid, exitcode=code, mono=mono))

    def _kill(self) -> list[int]:
        """Kill what still lives of the workers, with all that shares their sessions; returns what was found alive.

        Workers that torchrun has not named yet are looked for.
        """
        found = [worker.pid for worker in self._workers if worker.pidfd >= 0 and not _is_dead(worker.pidfd)]
        for worker in self._workers:
            if worker.pid in found:
                _kill_session(worker.pid, worker.pidfd)
        if len(self._workers) < self._slots:
            for pid in self._children.find(self._round):
                with contextlib.suppress(OSError):
                    pidfd = os.pidfd_open(pid)
                    try:
                        if self._children.is_of(pid, self._round):  # not another one that has its number by now
                            found.append(pid)
                            _kill_session(pid, pidfd)
                    finally:
                        os.close(pidfd)
        return found

    def _forget_workers(self) -> None:
        for worker in self._workers:
            if worker.pidfd >= 0:
                self._loop.remove_reader(worker.pidfd)
                os.close(worker.pidfd)
        self._workers = []


def _is_dead(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _kill_session(pid: int, pidfd: int) -> None:
    with contextlib.suppress(OSError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _world(launch: Launch, mark: str) -> dict[str, Any]:
    """What torchrun needs to know of a launch; the rest of the environment it makes itself."""
    env = launch.envs[0]
    return {
        "round": launch.round,
        "group_rank": int(env["GROUP_RANK"]),
        "nodes": int(env["GROUP_WORLD_SIZE"]),
        "base_rank": int(env["RANK"]),
        "size": int(env["WORLD_SIZE"]),
        "base_role_rank": int(env["ROLE_RANK"]),
        "role_size": int(env["ROLE_WORLD_SIZE"]),
        "store_host": env["MASTER_ADDR"],
        "store_port": int(env["MASTER_PORT"]),
        "env": {name: env.get(name) for name in (RESUME_STEP, SKIP)} | dict.fromkeys(WITHHELD) | {MARK: mark},
    }


def _error_file(pid: int) -> str:
    """Where torchrun lets a worker leave its error file."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    name = b"TORCHELASTIC_ERROR_FILE="
    return next((os.fsdecode(each[len(name) :]) for each in variables if each.startswith(name)), "")


def _exit_code(pid: int) -> int | None:
    """The exit code of a child of torchrun that torchrun has not collected yet."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _EXIT_CODE or fields[0] not in (b"Z", b"X"):
        return None
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))
