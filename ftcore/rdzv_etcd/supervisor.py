"""``ports.Supervisor`` for workers that torchrun runs; orders go to torchrun through ``channel``.

Failures are detected here, earlier than torchrun reports them: a worker's end shows on its pidfd, and its exit code in
``/proc`` until torchrun collects it. So other nodes are informed while torchrun still stops its own workers. Only
torchrun reports success. If torchrun is killed, its workers are killed here. Workers that torchrun has started and not
reported yet are found by a mark in their environment (``orphans.py``). The node leaves when no worker is left.

| order | carried out by |
|---|---|
| start | giving a world to the waiting rendezvous; answered when torchrun first monitors the new workers |
| stop | asking torchrun to return to the rendezvous; after the grace period, killing its remaining workers |
| open a store | torchrun, which has already imported torch |

House rule: workers that torchrun stops because another worker failed are not reported.
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
from ftcore.runtime.agent.workers.environment import RESUME_STEP, SKIP
from ftcore.runtime.wire import SECRET_VARIABLES

_EXIT_CODE = 49
"""Position of the exit code in ``/proc/PID/stat``, counted from the state."""

SWEEP_S = 10.0
"""Longest wait for killed workers to end before the node leaves."""

SCAN_S = 0.02
CLEAN_SCANS = 2
"""Scans in a row that must find no worker: during ``execve``, a process shows no environment."""

logger = structlog.get_logger()

TAIL_FILES = ("stderr.log", "stdout.log")
"""Output files beside a worker's error file, if torchrun redirects or tees."""


@attrs.define
class _TorchrunWorker:
    local_rank: int
    pid: int
    pidfd: int = -1
    error_file: str = ""
    over: bool = False
    code: int | None = None


@attrs.frozen(kw_only=True)
class AgentCallbacks:
    """Calls from the supervisor to the agent, other than answers to orders; made in the event loop.

    Args:
        gave_up: torchrun starts no more workers; gets reason and exit code.
        leave: torchrun ends, and the job may go on without this node; gets the reason.
        lost: torchrun died; gets the reason.
        close: the rendezvous was closed.
        why_no_world: returns why there is no world yet, or an empty text if there is one.
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
        slots: number of workers of the node.
        callbacks: to the agent.
        children: finds the workers that torchrun has not reported yet.
    """

    def __init__(self, peer: socket.socket, slots: int, callbacks: AgentCallbacks, children: Children) -> None:
        peer.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._slots = slots
        self._callbacks = callbacks
        self._children = children
        self._round = Round(0)
        self._workers: list[_TorchrunWorker] = []
        self._active = self._failed = self._done = self._dead = False
        self._idle = asyncio.Event()
        self._begun: asyncio.Future[tuple[int, ...]] | None = None
        self._opening: dict[int, asyncio.Future[int]] = {}
        self._queue: asyncio.Queue[WorkerExit | Callable[[], None] | None] = asyncio.Queue()
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
        if self._dead or self._done:
            raise UsageError("torchrun starts no more workers on this node")
        self._forget_workers()
        self._round, self._active, self._failed = launch.round, True, False
        self._idle.clear()
        self._begun = self._loop.create_future()
        self._send({"world": _world(launch, self._children.mark(launch.round))})
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
            self._send({"restart": 1})
        while not self._idle.is_set():
            left = self._kill_at - self._loop.time()
            if left <= 0 and not self._kill():
                break  # torchrun itself hangs, but no worker is left
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left if left > 0 else 1.0):
                    await self._changed.wait()
        for worker in self._workers:
            if not worker.over and _is_dead(worker.pidfd):
                self._over(worker)  # the event loop has not called it yet
        if self._done:
            self._callbacks.leave("its workers had ended with code 0 when the others began a new round")
        return tuple(None if was else worker.code for worker, was in zip(self._workers, before, strict=False))

    async def exits(self) -> AsyncIterator[WorkerExit]:
        """See ``ports.Supervisor``. Ends after ``close``."""
        while (item := await self._queue.get()) is not None:
            if isinstance(item, WorkerExit):
                yield item
            else:
                item()

    def progress(self) -> tuple[Progress | None, ...]:
        """See ``ports.Supervisor``: torchrun's workers have no pages."""
        return (None,) * self._slots

    def tail(self, local_rank: int, limit: int) -> str:
        """See ``ports.Supervisor``. Empty unless torchrun writes the worker's output to files."""
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
        self._opening[round_] = answer  # never answered if torchrun dies: the loss of the node is reported instead
        self._send({"open": round_, "host": host})
        try:
            return host, await answer
        finally:
            del self._opening[round_]

    async def close(self) -> None:
        """See ``ports.Supervisor``. If torchrun is dead, its remaining workers are killed."""
        if self._dead:
            self._kill()
        self._loop.remove_reader(self._peer.fileno())
        self._children.close(self._loop.remove_reader)
        for task in self._tasks:
            task.cancel()
        self._forget_workers()
        self._queue.put_nowait(None)

    # -- messages from torchrun

    def _send(self, message: dict[str, Any]) -> None:
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
            self._handle(message)

    def _died(self) -> None:
        """Handle torchrun's death; a process that it just forked may keep the channel open."""
        self._loop.remove_reader(self._children.pidfd)
        self._read()
        self._lost()

    def _handle(self, message: dict[str, Any]) -> None:
        if "next" in message:
            self._at_rendezvous(message["next"])
        elif "running" in message:
            self._started({int(rank): int(pid) for rank, pid in message["running"].items()})
        elif "unusable" in message:
            self._start_failed(str(message["unusable"]))
        elif "store" in message:
            self._opened(int(message["store"]), message.get("port"), str(message.get("error", "")))
        elif "expired" in message:
            task = self._loop.create_task(self._explain())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif "close" in message:
            self._callbacks.close()
        else:
            self._ended(message)

    def _started(self, pids: Mapping[int, int]) -> None:
        if not self._workers:
            for local_rank, pid in sorted(pids.items()):
                self._workers.append(self._watch(local_rank, pid))
        self._begin()

    def _begin(self) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(tuple(worker.pid for worker in self._workers))

    def _start_failed(self, reason: str) -> None:
        self._active = False
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(UsageError(reason))
        self._set_idle()

    def _at_rendezvous(self, failures: Sequence[Mapping[str, Any]]) -> None:
        """Handle ``next``: torchrun waits at the rendezvous, and no worker runs."""
        self._account(failures)
        if self._active and not self._failed:
            self._emit(0, 0, -signal.SIGTERM)  # torchrun stopped the workers without an order
        self._begin()
        self._set_idle()

    def _ended(self, message: Mapping[str, Any]) -> None:
        """Handle a message that torchrun starts no more workers."""
        self._account(message.get("failures", ()))
        self._begin()
        if "done" in message:
            self._done = True
            if self._active:
                for local_rank in range(self._slots):
                    self._emit(local_rank, 0, 0)
            else:
                self._queue.put_nowait(lambda: self._callbacks.leave("torchrun has ended"))
        elif "gave_up" in message:
            reason = str(message["gave_up"])
            self._queue.put_nowait(lambda: self._callbacks.gave_up(reason, 1))
        else:
            reason = f"torchrun ended: {message.get('leaving', 'unknown reason')}"
            self._queue.put_nowait(lambda: self._callbacks.leave(reason))
        self._set_idle()

    def _lost(self) -> None:
        """Handle torchrun's death without a last message.

        Pending start and store orders stay unanswered: only the loss of the node is known.
        """
        if self._dead:
            return
        self._dead = True
        self._sweeping = self._loop.create_task(self._sweep())
        self._set_idle()
        self._callbacks.lost("its torchrun died without a message")

    async def _sweep(self) -> None:
        """Kill the workers of a dead torchrun until scans find none."""
        until = self._loop.time() + SWEEP_S
        clean = 0
        while clean < CLEAN_SCANS:
            clean = 0 if self._kill() else clean + 1
            if self._loop.time() > until:
                logger.error("workers of a dead torchrun cannot be killed", pids=self._kill())
                break
            await asyncio.sleep(SCAN_S)
        self._active = False

    def _set_idle(self) -> None:
        self._idle.set()
        self._changed.set()

    def _opened(self, round_: int, port: int | None, error: str) -> None:
        answer = self._opening.get(round_)
        if answer is None or answer.done():
            return
        if port is None:
            answer.set_exception(UsageError(f"cannot open a store for round {round_}: {error}"))
        else:
            answer.set_result(port)

    async def _explain(self) -> None:
        reason = await self._callbacks.why_no_world()
        if reason and self._idle.is_set():
            self._send({"timeout": reason})

    # -- workers

    def _watch(self, local_rank: int, pid: int) -> _TorchrunWorker:
        worker = _TorchrunWorker(local_rank, pid, error_file=_error_file(pid))
        try:
            worker.pidfd = os.pidfd_open(pid)
            self._loop.add_reader(worker.pidfd, self._over, worker)
        except OSError:
            worker.over = True  # torchrun reports its exit code
        return worker

    def _over(self, worker: _TorchrunWorker) -> None:
        """Handle the end of a worker; if its exit code is already collected, torchrun reports it."""
        self._loop.remove_reader(worker.pidfd)
        worker.over = True
        self._changed.set()
        code = _exit_code(worker.pid)
        if code:
            self._fail(worker, code)

    def _account(self, failures: Sequence[Mapping[str, Any]]) -> None:
        """Process the worker failures that torchrun reports."""
        for failure in failures:
            local_rank, pid = int(failure["local_rank"]), int(failure["pid"])
            worker = next((each for each in self._workers if each.pid == pid), None)
            if worker is None and self._begun is not None and not self._begun.done():
                worker = _TorchrunWorker(local_rank, pid)  # it ended before torchrun reported it
                self._workers.append(worker)
            if worker is None or worker.code is not None:
                continue
            worker.error_file = worker.error_file or str(failure["error_file"])
            self._fail(worker, int(failure["exitcode"]))

    def _fail(self, worker: _TorchrunWorker, code: int) -> None:
        worker.code = code
        if self._active and not (self._failed and code == -signal.SIGTERM):
            self._emit(worker.local_rank, worker.pid, code)

    def _emit(self, local_rank: int, pid: int, code: int) -> None:
        self._failed = self._failed or code != 0
        mono = time.monotonic_ns()
        self._queue.put_nowait(WorkerExit(round=self._round, local_rank=local_rank, pid=pid, exitcode=code, mono=mono))

    def _kill(self) -> list[int]:
        """Kill all living workers with their process groups, also those not reported yet; returns their process ids."""
        found = [worker.pid for worker in self._workers if worker.pidfd >= 0 and not _is_dead(worker.pidfd)]
        for worker in self._workers:
            if worker.pid in found:
                _kill_session(worker.pid, worker.pidfd)
        if len(self._workers) < self._slots:
            for pid in self._children.find(self._round):
                with contextlib.suppress(OSError):
                    pidfd = os.pidfd_open(pid)
                    try:
                        if self._children.is_of(pid, self._round):  # the process id was not reused
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
    """The fields of a launch that torchrun needs; it makes the rest of the environment itself."""
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
        "env": {name: env.get(name) for name in (RESUME_STEP, SKIP)} | dict.fromkeys(SECRET_VARIABLES) | {MARK: mark},
    }


def _error_file(pid: int) -> str:
    """The path of a worker's error file, from its environment; empty if unknown."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""
    name = b"TORCHELASTIC_ERROR_FILE="
    return next((os.fsdecode(each[len(name) :]) for each in variables if each.startswith(name)), "")


def _exit_code(pid: int) -> int | None:
    """The exit code of a dead worker; None if torchrun has already collected it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _EXIT_CODE or fields[0] not in (b"Z", b"X"):
        return None
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))
