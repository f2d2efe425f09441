"""A complete launcher on asyncio that embeds ftcore: it brings its own processes, and ftcore keeps the job training.

    python examples/embed/asyncio_launcher.py --nodes 2 --nproc 2 --dir run examples/embed/train.py --steps 200

| process | started by | purpose |
|---|---|---|
| launcher | the user | starts one process per node, starts it again if it is killed, returns the job's exit code |
| node | the launcher | ftcore's agent, and a candidate for the master role |
| worker | its node | the script; its output goes through the node, with a prefix, and to a file |
| store server | its node | serves torch's ``TCPStore``, a new one for each round |

Everything of ftcore that it uses is public. Every process dies with the one that started it. For a real cluster, start
the node processes by your own means, and use ``etcd://`` as the log's store.

Exit codes: that of the job in its log: 0 if it succeeded, 1 if it failed, 128 + N after signal N. (``ftrun`` ends with
5 after SIGTERM: a later run resumes the job.) If the log has none, it is the first other than 0 of any node.
"""

import argparse
import asyncio
import collections
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import ftcore
from ftcore.errors import FtcoreError, UsageError

BOUND = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: end with the parent
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # it has ended before
os.execvp(sys.argv[2], sys.argv[2:])
"""
STORES = """
import sys
from torch.distributed import TCPStore
stores = []
for line in sys.stdin:  # ends with the node
    stores = [*stores[-1:], TCPStore("localhost", 0, is_master=True, wait_for_workers=False)]
    print(stores[-1].port, flush=True)
"""
TAIL_LINES = 100
DRAIN_S = 1.0
STOP_REQUEST_S = 5.0
"""How long a stop request may stay unanswered, before a node ends by itself."""


def bound(*argv: str) -> list[str]:
    """The command line of a program that is killed when this process ends."""
    return [sys.executable, "-c", BOUND, str(os.getpid()), *argv]


class Worker:
    """One worker: its process, its output, its progress page."""

    def __init__(self, launch: ftcore.Launch, local_rank: int, node: str) -> None:
        self.launch, self.local_rank = launch, local_rank
        self.page = ftcore.WorkerPage()
        self.lines: collections.deque[bytes] = collections.deque(maxlen=TAIL_LINES)
        self.process: asyncio.subprocess.Process | None = None
        self.stopped = False
        self._folder = Path(launch.log_dirs[local_rank])
        self._prefix = f"[{node}:{local_rank}] ".encode()
        self._copying: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Start the process; returns its id."""
        launch, python = self.launch, [sys.executable, "-u"]
        program = [] if launch.no_python else [*python, "-m"] if launch.module else python
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        reading, writing = os.pipe()
        try:
            self._copying = asyncio.create_task(self._copy(reading))
            self.process = await asyncio.create_subprocess_exec(
                *bound(*program, *launch.argv),
                env={**launch.envs[self.local_rank], **self.page.env},
                cwd=launch.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=(self.page.fd,),
                start_new_session=True,  # one signal reaches all of its processes
            )
        finally:
            os.close(writing)
            self.page.release_fd()
        return self.process.pid

    async def _copy(self, reading: int) -> None:
        """Copy the output to a file and, line by line with a prefix, to the console."""
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
        )
        rest = b""
        with contextlib.closing(transport), (self._folder / "output.log").open("ab", 0) as file:
            while chunk := await stream.read(1 << 16):
                file.write(chunk)
                *lines, rest = (rest + chunk).split(b"\n")
                self._show(lines)
            self._show([rest] if rest else [])

    def _show(self, lines: Sequence[bytes]) -> None:
        self.lines.extend(lines)
        for line in lines:
            sys.stdout.buffer.write(self._prefix + line + b"\n")
        sys.stdout.buffer.flush()

    @property
    def running(self) -> bool:
        """Whether its process has not ended."""
        return self.process is not None and self.process.returncode is None

    def kill(self, number: int) -> None:
        """Send a signal to the worker and the processes that it has started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    async def ended(self) -> int:
        """Wait until the process has ended and its output is copied; returns the exit code."""
        assert self.process is not None
        code = await self.process.wait()
        self.kill(signal.SIGKILL)  # what it has left behind
        if self._copying is not None:
            await asyncio.wait({self._copying}, timeout=DRAIN_S)
            self._copying.cancel()
        return code


class Workers:
    """An ``ftcore.Supervisor``: the workers of one node, as subprocesses of asyncio."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._workers: list[Worker] = []
        self._watching: set[asyncio.Task[None]] = set()
        self._exits: asyncio.Queue[ftcore.WorkerExit | None] = asyncio.Queue()
        self._stores: asyncio.subprocess.Process | None = None

    async def start(self, launch: ftcore.Launch) -> tuple[tuple[int, ...], str]:
        await self.stop(0.0)
        for worker in self._workers:
            worker.page.close()
        if launch.no_python and shutil.which(launch.argv[0]) is None:
            raise UsageError(f"{launch.argv[0]}: not found, or not executable")
        self._workers = [Worker(launch, local_rank, self._node) for local_rank in range(len(launch.envs))]
        try:
            pids = [await worker.start() for worker in self._workers]
        except OSError as error:
            await self.stop(0.0)
            raise UsageError(f"cannot start the workers in {launch.cwd}: {error.strerror}") from error
        for worker in self._workers:
            watch = asyncio.create_task(self._watch(worker))
            self._watching.add(watch)
            watch.add_done_callback(self._watching.discard)
        return tuple(pids), "exec: asyncio_launcher"

    async def _watch(self, worker: Worker) -> None:
        code, mono = await worker.ended(), time.monotonic_ns()
        if not worker.stopped and worker.process is not None:
            self._exits.put_nowait(
                ftcore.WorkerExit(
                    round=worker.launch.round,
                    local_rank=worker.local_rank,
                    pid=worker.process.pid,
                    exitcode=code,
                    mono=mono,
                )
            )

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        started = [worker for worker in self._workers if worker.process is not None]
        running = [worker for worker in started if worker.running]
        for worker in running:
            worker.stopped = True
            worker.kill(signal.SIGTERM)
        ends = [asyncio.create_task(worker.ended()) for worker in running]
        if ends:
            await asyncio.wait(ends, timeout=grace_s)
            for worker in running:
                worker.kill(signal.SIGKILL)
            await asyncio.wait(ends)
        return tuple(each.process.returncode if each in running and each.process else None for each in started)

    async def exits(self) -> AsyncIterator[ftcore.WorkerExit]:
        while (ended := await self._exits.get()) is not None:
            yield ended

    def progress(self) -> tuple[ftcore.Progress | None, ...]:
        return tuple(worker.page.progress() for worker in self._workers)

    def tail(self, local_rank: int, limit: int) -> str:
        text = b"\n".join(self._workers[local_rank].lines).decode(errors="replace")
        return text.encode()[-limit:].decode(errors="ignore") if limit else ""

    def error_file(self, local_rank: int) -> str:
        return self._workers[local_rank].launch.envs[local_rank]["TORCHELASTIC_ERROR_FILE"]

    async def open_store(self, round_: int, host: str) -> tuple[str, int]:
        pipe = asyncio.subprocess.PIPE
        if self._stores is None or self._stores.returncode is not None:
            argv = bound(sys.executable, "-c", STORES)
            self._stores = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, start_new_session=True)
        assert self._stores.stdin is not None
        assert self._stores.stdout is not None
        with contextlib.suppress(ConnectionError):
            self._stores.stdin.write(b"open\n")
            await self._stores.stdin.drain()
        port = await self._stores.stdout.readline()
        if not port:
            raise UsageError(f"no TCPStore for round {round_}: its server has ended, see above for its message")
        return host, int(port)

    async def close(self) -> None:
        await self.stop(0.0)
        for worker in self._workers:
            worker.page.close()
        self._workers = []
        if self._stores is not None and self._stores.returncode is None:
            self._stores.kill()
            await self._stores.wait()
        self._exits.put_nowait(None)


class Candidate:
    """The node's candidate for the master role, in the node's process.

    Args:
        url: the log's store.
        job: the job.
        socket: where the master serves.
    """

    def __init__(self, url: str, job: str, socket: str) -> None:
        self._url, self._job, self._socket = url, job, socket
        self._task: asyncio.Task[None] | None = None
        self.agent: ftcore.Agent | None = None

    def start(self, silent: int | None) -> None:
        """Start it, unless it runs; ftcore's agent calls this. ``silent`` is None if there is a leader."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(standby=silent is None))

    async def _run(self, *, standby: bool) -> None:
        try:
            log = await ftcore.open_log(self._url, self._job, create=True)
            try:
                await ftcore.Master(log, listen=f"unix:{self._socket}", standby=standby).run()
            finally:
                await log.close()
        except FtcoreError as error:
            if self.agent is not None:
                self.agent.cannot_lead(str(error))

    async def end(self, *, job_ended: bool) -> None:
        """Wait until it has ended with the job; if the job goes on without this node, resign."""
        if self._task is not None:
            if not job_ended:
                self._task.cancel()
            await asyncio.wait({self._task})


async def run_node(args: argparse.Namespace) -> int:
    """Run one node of the job; returns the exit code."""
    name, root, url = f"node-{args.node}", args.dir.absolute(), store_url(args)
    log = await ftcore.open_log(url, args.job, create=True)
    candidate = Candidate(url, args.job, f"{args.sockets}/{name}.{os.getpid()}")
    workers = Workers(name)
    spec = ftcore.JobSpec(argv=tuple(args.script), nodes_min=args.min_nodes or args.nodes, nodes_max=args.nodes)
    config = ftcore.AgentConfig(
        job=args.job,
        node=name,
        slots=args.nproc,
        address="127.0.0.1",
        ordinal=args.node,
        submission=ftcore.submission(spec, command=sys.argv),
        log_dir=root / "logs",
        state_dir=root / "state",
        env=os.environ,
        lead_delay_s=0.5 * args.node,  # the first node leads, unless it is gone
    )
    agent = candidate.agent = ftcore.Agent(config, log, workers, candidate.start)
    end_on_signals(agent)
    try:
        outcome = await agent.run()
    finally:
        await workers.close()
        await log.close()
    job_ended = outcome.outcome in ("succeeded", "failed", "stopped")
    await candidate.end(job_ended=job_ended)
    print(f"{name}: {outcome.outcome}: {outcome.reason}", file=sys.stderr)
    return outcome.exit_code


def end_on_signals(agent: ftcore.Agent) -> None:
    """On the first signal the job ends; on the second, this node at once."""
    loop, seen = asyncio.get_running_loop(), []

    def ended_by(number: signal.Signals) -> None:
        seen.append(number)
        if len(seen) > 1:
            agent.leave(f"{number.name}, for the second time", 128 + number, 0.0)
            return
        agent.ask_to_stop(f"{number.name} to the launcher", 128 + number)
        loop.call_later(STOP_REQUEST_S, leave_if_unheard, number)

    def leave_if_unheard(number: signal.Signals) -> None:
        if not agent.following:
            agent.leave(f"{number.name}, and no master answers", 128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended_by, number)


async def job_exit_code(log: ftcore.EventLog, after: Any) -> int | None:
    """The exit code of the last run in a log, behind an event; None: it has none."""
    code = None
    async for event in log.read(after=after):
        if event.type == "job.finished":
            code = int(event.data.exit_code)
    return code


async def launch(args: argparse.Namespace) -> int:
    """Run a process for each node until the job has ended; returns the exit code."""
    processes: dict[int, asyncio.subprocess.Process] = {}
    signalled: list[signal.Signals] = []

    def forward(number: signal.Signals) -> None:
        signalled.append(number)
        for process in processes.values():
            if process.returncode is None:
                process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, forward, number)

    async def keep(place: int, sockets: str) -> int:
        restarts = 0
        while True:
            own = ("--node", str(place), "--sockets", sockets)
            argv = bound(sys.executable, __file__, *own, *sys.argv[1:])
            processes[place] = await asyncio.create_subprocess_exec(*argv, start_new_session=True)
            code = await processes[place].wait()
            if code >= 0 or signalled or restarts >= args.node_restarts:
                return code if code >= 0 else 128 - code
            restarts += 1
            name = signal.Signals(-code).name
            print(f"launcher: node-{place} was ended by {name}; restart {restarts} of it", file=sys.stderr)

    log = await ftcore.open_log(store_url(args), args.job, create=True)
    try:
        before = await log.last_seq()  # of earlier runs
        with tempfile.TemporaryDirectory() as sockets:  # private, and with a path that is short enough
            codes = await asyncio.gather(*(keep(place, sockets) for place in range(args.nodes)))
        try:
            code = await job_exit_code(log, before)
        except FtcoreError as error:
            print(f"launcher: the log does not say how the job ended: {error}", file=sys.stderr)
            code = None
    finally:
        await log.close()
    return next((code for code in codes if code), 0) if code is None else code


def store_url(args: argparse.Namespace) -> str:
    """The URL of the log's store; default: a file in the job's directory."""
    return str(args.store or f"sqlite://{args.dir.absolute() / 'log'}")


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the job")
    parser.add_argument("--min-nodes", type=int, help="fewest nodes to train with; default: all")
    parser.add_argument("--nproc", type=int, default=1, help="workers of each node")
    parser.add_argument("--node-restarts", type=int, default=3, help="how often a killed node is started again")
    parser.add_argument("--job", default="job", help="the job's name")
    parser.add_argument("--dir", type=Path, default=Path("run"), help="the job's files")
    parser.add_argument("--store", help="store of the event log; default: a file in --dir")
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--sockets", help=argparse.SUPPRESS)
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script and its arguments")
    args = parser.parse_args()
    if not args.script:
        parser.error("name the script to run, after all options")
    if args.nodes < 1 or args.nproc < 1:
        parser.error("--nodes and --nproc are at least 1")
    return args


def main() -> int:
    """Run the launcher, or one node of it."""
    args = parse()
    try:
        return asyncio.run(launch(args) if args.node is None else run_node(args))
    except FtcoreError as error:
        print(f"asyncio_launcher: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
