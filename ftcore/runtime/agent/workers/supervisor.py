"""Runs the workers of one node: starts them, reports their exits, stops them, and removes all their processes.

House rules: everything runs in the agent's event loop and nothing blocks it; the agent itself never forks. The
supervisor owns these processes:

| process | started by | reaction to its end |
|---|---|---|
| guard | exec | restarted |
| warm process | exec | restarted; workers are not affected |
| parked workers, later workers | fork of the warm process, reparented to the agent | exit code is reported |
| prepared workers | the same | replaced after the next launch |
| store host | fork of the warm process, reparented to the agent | restarted; the loss of its rounds is reported |

Every other descendant of the agent was started by a worker, because the agent is a subreaper. Those are killed when
the last worker of a round has ended or is stopped. Other code in the agent's process that starts processes must
register them (``reaper.watch``), or start them before the supervisor.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from ftcore.errors import UsageError
from ftcore.faults.rule import Rule
from ftcore.ids import Round
from ftcore.ports import NO_ROUND, Launch, Progress, Signs, WorkerExit
from ftcore.runtime.agent.workers import callfile, launchable, leftovers, local_worker, processes
from ftcore.runtime.agent.workers.guard import Guard
from ftcore.runtime.agent.workers.local_worker import ERROR_FILE_ENV, LocalWorker
from ftcore.runtime.agent.workers.log_watch import HitCallback, LogWatch
from ftcore.runtime.agent.workers.output import STDERR, STDOUT, Console, FileWriter, LineCopies, Output, OutputPipe
from ftcore.runtime.agent.workers.pages import WorkerPage
from ftcore.runtime.agent.workers.parking import RoundChannel, WorkerFault, fault_of
from ftcore.runtime.agent.workers.prepared import PreparedWorkers, PrepareOptions
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.agent.workers.stackfile import StackFile
from ftcore.runtime.agent.workers.store_link import StoreLink
from ftcore.runtime.agent.workers.warm_link import ParkedWorker, WarmLink, receive
from ftcore.runtime.agent.workers.warm_start import AGENT_ENV, Started, new_tag
from ftcore.runtime.warm.protocol import DEFAULT_PRELOAD
from ftcore.shm.boundary import BoundaryOrders
from ftcore.shm.calls import Call
from ftcore.wording import plural

FLUSH_S: Final = 1.0
FILES: Final = {STDOUT: "stdout.log", STDERR: "stderr.log"}
COPIES: Final = {STDOUT: "filtered_stdout.log", STDERR: "filtered_stderr.log"}
"""Files of a round with the lines that the user selected."""


class LocalSupervisor:
    """``ports.Supervisor`` with processes of this machine. Must be created in the main thread, in the agent's loop.

    Args:
        env: environment of the warm process; a launch that differs from it in a variable that is read at load time uses
            exec instead of fork.
        preload: modules that the warm process imports; None: every launch uses exec.
        nproc: expected number of workers, which are forked in advance.
        store_port: port of the stores, if free; 0: a free port for each.
        output: which output is shown.
        on_note: called with a message for the user about a failure (such as an unwritable log file); default: stderr.
        on_store_lost: called with each round whose store was lost because the store host died.
        reaper: waits for all children; None: the supervisor creates one.
        on_match: called with round, global rank and match of a rule in a worker's output; None: output is not scanned.
        on_fault: called with what a worker noticed and stays alive after.
        rules: the job's own rules for the scan.
        warm: the warm process, if it was started already, with that environment and those modules.
        prepare: the workers that are prepared for a later round; None: none are.

    Raises:
        OSError: the guard or the warm process cannot be started.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        preload: Sequence[str] | None = DEFAULT_PRELOAD,
        nproc: int = 1,
        store_port: int = 0,
        output: Output | None = None,
        on_note: Callable[[str], None] | None = None,
        on_store_lost: Callable[[Round], None] | None = None,
        reaper: Reaper | None = None,
        on_match: HitCallback | None = None,
        on_fault: Callable[[WorkerFault], None] | None = None,
        rules: tuple[Rule, ...] = (),
        warm: Started | None = None,
        prepare: PrepareOptions | None = None,
    ) -> None:
        processes.become_subreaper()
        self._loop = asyncio.get_running_loop()
        self._older_children = frozenset(processes.children(os.getpid())) - ({warm.pid} if warm is not None else set())
        self._own_reaper = reaper is None
        self._reaper = Reaper() if reaper is None else reaper
        self._output = Output() if output is None else output
        self._consoles = {STDOUT: Console(self._output.stdout), STDERR: Console(self._output.stderr)}
        self._on_note = on_note or (lambda text: self._consoles[STDERR].put(f"ftcore: {text}\n".encode()))
        self._on_fault = on_fault or (lambda _fault: None)
        self._noted: set[str] = set()
        self._writer = FileWriter(self._loop, self._note_file)
        self._log_watch = LogWatch(self._loop, on_match, rules) if on_match is not None else None
        self._tag = new_tag() if warm is None else warm.tag
        self._guard = Guard(self._reaper, f"{AGENT_ENV}={self._tag}")
        self._env = {**env, AGENT_ENV: self._tag}
        self._preloads = preload is not None
        self._warm = WarmLink(self._reaper, env, preload or (), nproc, self._tag, warm)
        lost = on_store_lost or (lambda _round: None)
        self._store = StoreLink(self._reaper, self._warm, lost, store_port, self._on_note)
        self._exits: asyncio.Queue[WorkerExit | None] = asyncio.Queue()
        self._workers: list[LocalWorker] = []
        self._prepared = PreparedWorkers(prepare, self._begin_prepared, self._stepped, self._on_note, self._release)
        self._copies: dict[int, LineCopies] = {}
        self._former_copies: list[LineCopies] = []
        self._round = NO_ROUND
        self._active = False
        self._starting: asyncio.Task[str] | None = None
        self._stopping = asyncio.Lock()
        self._kill_at = float("inf")
        self._changed = asyncio.Event()
        self._sweeping: asyncio.Task[None] | None = None

    async def warmed(self) -> bool:
        """See ``ports.Warmer``."""
        try:
            await self._warm.unsafe()
        except UsageError:
            return False  # the next start says why
        await self._prepared.standby()
        return True

    async def start(self, launch: Launch) -> tuple[tuple[int, ...], str]:
        """See ``ports.Supervisor``. Workers of an older round that do not wait are stopped first, without grace."""
        kept = self._waiting_for(launch)
        if not kept:
            await self.stop(0.0)
        launchable.check(launch)
        self._noted.clear()
        self._starting = self._loop.create_task(self._start(launch, kept))
        try:
            how = await self._starting
        except asyncio.CancelledError:
            if self._stopping.locked():
                raise UsageError("the workers were stopped while they were being started") from None
            self._starting.cancel()
            raise
        except OSError as error:
            await self.stop(0.0)
            raise UsageError(f"cannot start the workers: {error.strerror or error}") from error
        finally:
            self._starting = None
        return tuple(worker.pid for worker in self._workers), how

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        """See ``ports.Supervisor``. A second, concurrent call shortens the grace period and returns an empty tuple."""
        self._kill_at = min(self._kill_at, self._loop.time() + grace_s)
        self._changed.set()
        async with self._stopping:
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.wait({self._starting})
            if self._sweeping is not None:
                await self._sweeping
            if not self._active:
                self._kill_at = float("inf")
                return ()
            self._reaper.drain()
            ended = [worker.exitcode is not None for worker in self._workers]
            self._active = False
            for worker in self._alive():
                processes.kill(worker.pid, signal.SIGTERM, group=True)
                processes.kill(worker.pid, signal.SIGCONT, group=True)  # a stopped process gets SIGTERM only then
            await self._ends(until_kill=True)
            for worker in self._alive():
                processes.kill(worker.pid, signal.SIGKILL, group=True)
            await self._ends(until_kill=False)
            await self._finish()
            self._kill_at = float("inf")
            pairs = zip(self._workers, ended, strict=True)
            return tuple(None if before else worker.exitcode for worker, before in pairs)

    async def park(self, grace_s: float) -> tuple[int, ...]:
        """See ``ports.ParkControl``."""
        await local_worker.ask_to_leave([each for each in self._alive() if not processes.is_stopped(each.pid)], grace_s)
        waiting = [worker for worker in self._alive() if worker.waits]
        if len(waiting) < len(self._workers) and not all(worker.parks for worker in waiting):
            waiting = []  # the script cannot go on beside a new process
        late = [worker for worker in self._alive() if worker not in waiting]
        for worker in late:
            worker.dropped = True
            processes.kill(worker.pid, signal.SIGKILL, group=True)
        while any(worker.exitcode is None for worker in late):
            self._changed.clear()
            await self._changed.wait()
        return tuple(worker.local_rank for worker in waiting if worker.exitcode is None)

    async def exits(self) -> AsyncIterator[WorkerExit]:
        """See ``ports.Supervisor``. Ends after ``close``."""
        while (ended := await self._exits.get()) is not None:
            yield ended

    def progress(self) -> tuple[Progress | None, ...]:
        """See ``ports.Supervisor``."""
        return tuple(worker.page.progress() for worker in self._workers)

    def signs(self) -> tuple[Signs, ...]:
        """See ``ports.Inspector``."""
        return tuple(worker.page.signs() for worker in self._workers)

    def boundaries(self) -> tuple[BoundaryOrders | None, ...]:
        """See ``ports.BoundaryControl``."""
        return tuple(worker.page.orders if worker.exitcode is None else None for worker in self._workers)

    def ask_stack(self, local_rank: int, every: bool = False, locked: bool = False) -> bool:
        """See ``ports.Inspector``."""
        worker = self._workers[local_rank]
        return worker.exitcode is None and worker.stacks.ask(worker.pid, every, locked)

    def stack(self, local_rank: int) -> str:
        """See ``ports.Inspector``."""
        return self._workers[local_rank].stacks.read() if local_rank < len(self._workers) else ""

    def ask_child(self, local_rank: int, pid: int, locked: bool = False) -> bool:
        """See ``ports.DeepInspector``."""
        worker = self._workers[local_rank]
        return worker.exitcode is None and worker.stacks.ask(pid, True, locked)

    def ask_calls(self, local_rank: int) -> bool:
        """See ``ports.DeepInspector``."""
        worker = self._workers[local_rank]
        return worker.exitcode is None and callfile.ask(worker.pid, worker.page.signs().sections.calls)

    def calls(self, local_rank: int) -> tuple[tuple[Call, ...], str]:
        """See ``ports.DeepInspector``."""
        worker = self._workers[local_rank]
        return callfile.read(worker.pid, worker.page.signs().sections.calls)

    def tail(self, local_rank: int, limit: int) -> str:
        """See ``ports.Supervisor``. Includes workers that have ended, until the next start."""
        worker = self._workers[local_rank]
        data = worker.stderr.tail() or worker.stdout.tail()
        if len(data) > limit:
            data = data[len(data) - limit :]
            data = data[data.find(b"\n") + 1 :] if b"\n" in data[:-1] else data
        # A replacement character is longer than the byte that it replaces.
        return data.decode(errors="replace").encode()[-limit:].decode(errors="ignore") if limit else ""

    def error_file(self, local_rank: int) -> str:
        """See ``ports.Supervisor``."""
        return self._workers[local_rank].error_file

    async def open_store(self, round_: Round, host: str) -> tuple[str, int]:
        """See ``ports.Supervisor``. The stores of the last two rounds are kept."""
        return host, await self._store.open(round_, host)

    async def close(self) -> None:
        """See ``ports.Supervisor``."""
        await self.stop(0.0)
        self._prepared.close()
        self._store.close()
        self._warm.close()
        await self._sweep()
        self._guard.close()
        await self._wait_for_children()
        await self._writer.flush(FLUSH_S)
        self._writer.close()
        if self._log_watch is not None:
            self._log_watch.close()
            if self._log_watch.dropped:
                dropped = plural(self._log_watch.dropped, "byte of output was", "bytes of output were")
                self._on_note(f"{dropped} not scanned for known errors: the scan was too slow")
        for console in self._consoles.values():
            await self._loop.run_in_executor(None, console.flush, FLUSH_S)
        self._exits.put_nowait(None)
        self._close_workers()
        if self._own_reaper:
            self._reaper.close()

    # Starting

    def _waiting_for(self, launch: Launch) -> dict[int, LocalWorker]:
        """The workers that enter the round as they are; none if another one runs, or one has another rank there."""
        alive = self._alive() if self._active else []
        if not all(worker.waits and worker.fits(launch) for worker in alive):
            return {}
        return {worker.local_rank: worker for worker in alive}

    async def _start(self, launch: Launch, parked: Mapping[int, LocalWorker]) -> str:
        prepared = await self._prepared.choose(launch, parked)
        kept = {**parked, **prepared}
        missing = [local_rank for local_rank in range(len(launch.envs)) if local_rank not in kept]
        try:
            reason = await self._why_exec(launch) if missing else ""
            if parked and missing:
                await self._sweep()  # what the dead ones have left
            forked = await self._warm.take(len(missing)) if missing else []
        except BaseException:
            self._prepared.keep()
            raise
        self._close_workers(parked)
        self._round, self._active = launch.round, True
        self._former_copies += self._copies.values()
        self._copies = {
            stream: LineCopies(self._writer, os.path.join(os.path.dirname(launch.log_dirs[0]), name), texts)
            for stream, name in COPIES.items()
            if (texts := self._output.copied.get(stream))
        }
        self._workers = list(kept.values())
        self._prepared.entered()
        try:
            for local_rank, waiting in zip(missing, forked, strict=True):
                self._workers.append(self._new_worker(launch, local_rank, waiting))
            for worker in kept.values():
                self._renew(worker, launch)
                if worker.exitcode is not None:  # meanwhile; it was reported as one of the round before
                    self._exits.put_nowait(worker.exit_of(self._round, time.monotonic_ns()))
        except OSError:
            for waiting in forked:
                waiting.channel.close()
            raise
        self._workers.sort(key=lambda worker: worker.local_rank)
        entering = [worker.enter(self._env_of(worker, launch)) for worker in kept.values()]
        fresh = [worker for worker in self._workers if worker.local_rank not in kept]
        try:
            how = await self._hand_over(fresh, launch, reason)
            await asyncio.gather(*entering)
        finally:
            for worker in self._workers:
                worker.close_worker_ends()
        return local_worker.how_started(len(self._workers), how if fresh else "", len(parked), len(prepared))

    async def _why_exec(self, launch: Launch) -> str:
        if not self._preloads:
            return "--no-preload"
        return launchable.why_exec(launch, self._env) or await self._warm.unsafe()

    async def _begin_prepared(self, launch: Launch, ranks: Collection[int]) -> str:
        launchable.check(launch)
        reason = await self._why_exec(launch)
        if reason:
            return f"they cannot be forked: {reason}"
        forked = await self._warm.take(len(ranks))
        workers: list[LocalWorker] = []
        try:
            for local_rank, waiting in zip(ranks, forked, strict=True):
                workers.append(self._new_worker(launch, local_rank, waiting))
                self._prepared.add(workers[-1])
            how = await self._hand_over(workers, launch, "")
        finally:
            for waiting in forked[len(workers) :]:
                waiting.channel.close()
            for worker in workers:
                worker.close_worker_ends()
        return "" if how == "fork" else f"they cannot be forked: {how}"

    async def _hand_over(self, fresh: Sequence[LocalWorker], launch: Launch, exec_reason: str) -> str:
        """Hand a launch over to forked processes; returns how they run it."""
        for worker in fresh:
            local_worker.hand_over(worker, launch, self._env_of(worker, launch), exec_reason)
        replies = await asyncio.gather(*(receive(worker.parked.channel) for worker in fresh))
        for worker, (reply, _) in zip(fresh, replies, strict=True):
            worker.stacks.worker_fd = int(reply["stacks"]) if reply is not None else -1
        return next((str(reply["how"]) for reply, _ in replies if reply is not None), "fork")

    def _stepped(self) -> bool:
        return (not self._active or bool(self._alive())) and all(map(local_worker.has_stepped, self._alive()))

    def _release(self, worker: LocalWorker) -> None:
        self._guard.remove(worker.pid)
        worker.close()

    def _new_worker(self, launch: Launch, local_rank: int, parked: ParkedWorker) -> LocalWorker:
        env, log_dir = launch.envs[local_rank], launch.log_dirs[local_rank]
        error_file = local_worker.clear_error_file(env, log_dir, self._note_file)
        worker = LocalWorker(
            local_rank,
            parked.pid,
            parked,
            self._stream(STDOUT, launch, local_rank),
            self._stream(STDERR, launch, local_rank),
            WorkerPage(),
            StackFile(),
            RoundChannel(self._loop, lambda found: self._noticed(worker, found)),
            error_file,
            local_worker.place_of(launch, local_rank),
        )
        self._guard.add(worker.pid)
        self._reaper.watch(worker.pid, lambda code, mono: self._ended(worker, code, mono))
        return worker

    def _renew(self, worker: LocalWorker, launch: Launch) -> None:
        """Give a worker that enters a round what a new one has: files of its output, a page, an error file."""
        env, log_dir = launch.envs[worker.local_rank], launch.log_dirs[worker.local_rank]
        worker.error_file = local_worker.clear_error_file(env, log_dir, self._note_file)
        stdout = self._stream(STDOUT, launch, worker.local_rank)
        worker.renew(launch, stdout, self._stream(STDERR, launch, worker.local_rank))

    def _noticed(self, worker: LocalWorker, found: Mapping[str, Any]) -> None:
        fault = fault_of(found, self._round, worker.local_rank)
        worker.damaged = worker.damaged or fault.kind == "uce"
        if fault.kind == "collective" and any(processes.is_ending(each.pid) for each in self._alive()):
            worker.suspicion = fault  # the end of that worker says more, if it is a failure
            return
        self._on_fault(fault)

    def _env_of(self, worker: LocalWorker, launch: Launch) -> dict[str, str]:
        return {**launch.envs[worker.local_rank], AGENT_ENV: self._tag, ERROR_FILE_ENV: worker.error_file}

    def _stream(self, stream: int, launch: Launch, local_rank: int) -> OutputPipe:
        env, path = launch.envs[local_rank], os.path.join(launch.log_dirs[local_rank], FILES[stream])
        shown, prefix = self._output.shown(stream, env, local_rank)
        console = self._consoles[stream] if shown else None
        if launch.round == NO_ROUND:
            return OutputPipe(self._loop, self._writer, path, console, prefix)
        watch = self._log_watch
        tap = watch.stream(launch.round, int(env.get("RANK", local_rank))) if watch is not None else None
        copies = self._copies.get(stream)
        copy = copies.of(self._output.prefix(env, local_rank)) if copies is not None else None
        return OutputPipe(self._loop, self._writer, path, console, prefix, tap, copy)

    # Ending

    def _ended(self, worker: LocalWorker, code: int, mono: int) -> None:
        worker.exitcode = code
        worker.drain()
        self._changed.set()
        if self._prepared.ended(worker) or not self._active:
            return
        if worker.dropped:
            self._finish_soon()
            return
        self._exits.put_nowait(worker.exit_of(self._round, mono))
        for each in self._alive() if code == 0 else ():
            if each.suspicion is not None:
                self._on_fault(each.suspicion)
        self._finish_soon()

    def _finish_soon(self) -> None:
        if not self._alive():
            self._sweeping = self._loop.create_task(self._finish())

    def _alive(self) -> list[LocalWorker]:
        return [worker for worker in self._workers if worker.exitcode is None]

    async def _ends(self, *, until_kill: bool) -> None:
        """Wait until all workers have ended; with ``until_kill``, at most until the end of the grace period."""
        while self._alive():
            self._changed.clear()
            left = max(0.0, self._kill_at - self._loop.time()) if until_kill else leftovers.SWEEP_S_MAX
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                if until_kill:
                    return
                pids = ", ".join(str(worker.pid) for worker in self._alive())
                self._on_note(f"killed workers do not end (blocked in the kernel): pids {pids}; still waiting")

    async def _finish(self) -> None:
        """After the end of the last worker: kill remaining processes and process remaining output."""
        await self._sweep()
        for worker in self._workers:
            self._guard.remove(worker.pid)
            worker.close_output()
        for copies in (*self._copies.values(), *self._former_copies):
            copies.close()
        self._copies, self._former_copies = {}, []
        self._sweeping = None
        await self._writer.flush(FLUSH_S)

    async def _sweep(self) -> None:
        async with self._warm.asking:
            await leftovers.kill(self._reaper, self._older_children, self._note_file, self._on_note)

    async def _wait_for_children(self) -> None:
        """Wait until the agent's own killed processes have ended, at most ``FLUSH_S``."""
        deadline = self._loop.time() + FLUSH_S
        while set(processes.children(os.getpid())) - self._older_children and self._loop.time() < deadline:
            self._reaper.drain()
            await asyncio.sleep(0.001)

    def _close_workers(self, kept: Mapping[int, LocalWorker] | None = None) -> None:
        """Close what belongs to workers that have ended; with ``kept``, others go on."""
        for worker in self._workers:
            if kept and worker.local_rank in kept:
                continue
            if kept:  # else this was done at the end of the last one
                self._guard.remove(worker.pid)
            worker.close()
        self._workers = []

    def _note_file(self, text: str) -> None:
        kind = text.partition(": ")[2]
        if kind not in self._noted:
            self._noted.add(kind)
            self._on_note(text)
