"""Many light agents in few processes with the production master: shared code of the scale benchmarks.

A light agent is the production core (``engine/agent.py``), outbox and link (``runtime/agent``): each has its own TCP
connection and gRPC stream, sends the same frames and obeys the same orders as an agent of ``ftrun``. Left out are parts
that cost the host but not the master: workers (a supervisor answers at once instead), the warm process, and the
outbox's file. The agents of a process share one client of the log store. Stores of rounds are real: served by
``runtime/warm/store.py`` in a process beside the agents with the lowest ordinals.

House rule: production code does not import this module, and nothing is patched.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs

from ftcore import __version__
from ftcore.engine import actions as act
from ftcore.engine import agent as core
from ftcore.events.job import JobSpec
from ftcore.events.node import NodeJoined
from ftcore.ids import JobName
from ftcore.logs import open_store
from ftcore.policies.file.config import parse
from ftcore.ports import EventLog, Progress, WorkerExit
from ftcore.runtime.agent.link.link import Link, make_hello
from ftcore.runtime.agent.link.outbox import Outbox
from ftcore.runtime.clock import at
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.logging import configure
from ftcore.runtime.warm import protocol
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.security import NONE
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.timing import Timing

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from etcd_cluster import Cluster

POLICY = "version: 1\nchain:\n  - shrink\n  - process_restart: {max_restarts: 1000}\n  - stop\n"
"""An impossible directory, so that the outbox stays in memory."""

WAIT_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")


# --- agents ----------------------------------------------------------------------------------------------------------


class LightAgent:
    """One agent of a swarm.

    Args:
        swarm: its process.
        ordinal: its place.
    """

    def __init__(self, swarm: "Swarm", ordinal: int) -> None:
        self.swarm = swarm
        self.node = f"node{ordinal}"
        self.ordinal = ordinal
        self.core = core.AgentCore(self.node, 1, swarm.timing)
        self.page: Progress | None = None
        self._task: asyncio.Task[None] | None = None
        self._begin_life()

    def _begin_life(self) -> None:
        incarnation = f"{os.getpid():x}-{os.urandom(4).hex()}"
        self.outbox = Outbox(self.node, incarnation, lambda: self.link.wake())
        self.link: Link = Link(
            host=THIS_HOST,
            transport=GrpcTransport(NONE),
            log=self.swarm.log,
            hello=make_hello(
                job=self.swarm.job,
                node=self.node,
                incarnation=incarnation,
                submission=self.swarm.submission,
                again=bool(self.core.incarnation),
            ),
            outbox=self.outbox,
            security=NONE,
            beat=self._beat,
            timing=self.swarm.timing,
            on_welcome=lambda frame: self._do(self.core.welcomed(frame.term)),
            on_broken=self._broken,
            on_refused=lambda frame: self._do(self.core.refused(frame.reason, frame.rejoin, frame.release)),
            on_orders=self._obey,
            on_standby=lambda: None,
            on_lookup=lambda led: None,
            on_leaderless=lambda leader: None,
        )
        joined = NodeJoined(
            node=self.node,
            incarnation=incarnation,
            slots=1,
            host="bench",
            pid=os.getpid(),
            address="127.0.0.1",
            version=__version__,
            ordinal=self.ordinal,
        )
        self._do(self.core.begin(joined))

    def connect(self) -> None:
        """Connect to the master, and reconnect from now on."""
        self._task = asyncio.create_task(self.link.run())

    def cut(self) -> None:
        """Disconnect without a message."""
        assert self._task is not None
        self._task.cancel()

    def fail(self) -> None:
        """Report a failed worker."""
        ended = WorkerExit(round=self.core.round, local_rank=0, pid=1, exitcode=-9, mono=time.monotonic_ns())
        self._do(self.core.exited(ended, (self.page,)))

    def step(self, number: int) -> None:
        """Report the workers' first step of the round."""
        self.page = Progress(steps=1, step=number, absolute=True, mono=time.monotonic_ns(), loss=None)
        self._do(self.core.looked((self.page,), time.monotonic()))

    def _broken(self) -> None:
        self.swarm.broken += 1
        self._do(self.core.stream_broken())

    def _beat(self) -> frames.Beat:
        pulse = self.core.pulse((self.page,))
        return frames.Beat(round=pulse.round, step=pulse.step, absolute=pulse.absolute, loss=pulse.loss)

    def _obey(self, frame: frames.Orders) -> None:
        for order in frame.orders:
            self._do(self.core.obey(order))

    def _do(self, actions: act.Actions) -> None:
        for action in actions:
            if isinstance(action, act.Tell | act.TellFailure):
                self.outbox.add(action.data, at(action.mono))
            elif isinstance(action, act.StartRound):
                self.page = None
                self.swarm.started(action)
                self._do(self.core.started(action, (1,), "stub"))
            elif isinstance(action, act.StopRound):
                self.swarm.stopped_at = time.monotonic()
                self._do(self.core.stopped(action, (-15,)))
            elif isinstance(action, act.Open):
                self.swarm.spawn(self._open(action))
            elif isinstance(action, act.Rejoin):
                self.swarm.spawn(self._rejoin())
            elif isinstance(action, act.GiveUp):
                self.swarm.refusals.append(action.reason)

    async def _open(self, action: act.Open) -> None:
        port = await asyncio.to_thread(self.swarm.open_store, action.round)
        self._do(self.core.store_opened(action, "127.0.0.1", port))

    async def _rejoin(self) -> None:
        self.cut()
        self.core.halt()
        self._begin_life()
        self.connect()


class Swarm:
    """The agents of one process.

    Args:
        pipe: pipe to the benchmark's main process.
        url: URL of the log store.
        spec: the job's spec.
        job: its name.
        ordinals: the agents' ordinals.
        barrier: run a barrier at the round's store when a world is formed.
    """

    def __init__(
        self, pipe: Connection, url: str, spec: JobSpec, job: str, ordinals: Sequence[int], barrier: bool
    ) -> None:
        self.timing = spec.timing
        self.job = job
        self.submission = frames.submission(spec, parse(POLICY, "benchmark"))
        self.broken = 0
        self.refusals: list[str] = []
        self.stopped_at = 0.0
        self.log: EventLog
        self._pipe = pipe
        self._url = url
        self._ordinals = ordinals
        self._barrier = barrier
        self._agents: dict[int, LightAgent] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._host = StoreHost() if 0 in ordinals and barrier else None
        self._starts: dict[int, list[tuple[float, act.StartRound]]] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Carry out the benchmark's commands until ``end``."""
        store = open_store(self._url)
        self.log = await store.open(JobName(self.job))
        self._agents = {ordinal: LightAgent(self, ordinal) for ordinal in self._ordinals}
        self._pipe.send("ready")
        while True:
            word, *arguments = await asyncio.to_thread(self._pipe.recv)
            if word == "end":
                break
            self._pipe.send(await getattr(self, f"_{word}")(*arguments))
        os._exit(0)  # thousands of streams need no goodbye

    async def _connect(self, ordinals: Sequence[int] | None) -> int:
        count = 0
        for ordinal, agent in self._agents.items():
            if ordinals is None or ordinal in ordinals:
                agent.connect()
                count += 1
        return count

    async def _cut(self, ordinal: int) -> float:
        """Disconnect an agent; return the time."""
        agent = self._agents.pop(ordinal, None)
        if agent is not None:
            agent.cut()
        return time.monotonic()

    async def _fail(self, ordinal: int) -> float:
        """Report a failed worker; return the time."""
        began = time.monotonic()
        if ordinal in self._agents:
            self._agents[ordinal].fail()
        return began

    async def _world(self, round_: int) -> tuple[float, float]:
        """Wait until all agents have a world and, if configured, have passed the barrier; return the times."""
        async with asyncio.timeout(WAIT_S):
            while len(self._starts.get(round_, ())) < len(self._agents):
                assert not self.refusals, self.refusals[0]
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5):
                        await self._changed.wait()
        starts = self._starts[round_]
        met = await asyncio.to_thread(self._meet, [start for _, start in starts]) if self._barrier else 0.0
        return max(moment for moment, _ in starts), met

    async def _step(self, number: int) -> int:
        for agent in self._agents.values():
            agent.step(number)
        while any(agent.outbox.unacknowledged(0) for agent in self._agents.values()):
            await asyncio.sleep(0.05)
        return len(self._agents)

    async def _state(self) -> tuple[float, int]:
        """Return when the last stop order was carried out, and the number of broken streams."""
        return self.stopped_at, self.broken

    def started(self, start: act.StartRound) -> None:
        """Record that an agent has its slice of a world."""
        self._starts.setdefault(start.round, []).append((time.monotonic(), start))
        self._changed.set()

    def open_store(self, round_: int) -> int:
        """Serve a round's store; return its port."""
        return self._host.open(round_) if self._host is not None else 9  # without a barrier the store has no clients

    def spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _meet(self, starts: Sequence[act.StartRound]) -> float:
        """Run a barrier of one client per agent; return the time when the last client has passed."""
        part = starts[0].part
        clients = [StoreClient(part.store_host, part.store_port) for _ in starts]
        for client in clients:
            if client.add(b"arrived") == part.nodes:
                client.put(b"all")
            client.ask(b"all")
        for client in clients:
            client.wait()
            client.close()
        return time.monotonic()


class StoreClient:
    """A minimal client of a TCPStore.

    torch's own client resolves the name of each peer, so thousands of them would measure the name server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(struct.pack("=BI", 0, 0x3C85F7CE))

    def add(self, key: bytes) -> int:
        """Increment a counter; return its value."""
        self._socket.sendall(struct.pack("=BQ", 4, len(key)) + key + struct.pack("=q", 1))
        return int(struct.unpack("=q", self._socket.recv(8, socket.MSG_WAITALL))[0])

    def put(self, key: bytes) -> None:
        """Set a key."""
        self._socket.sendall(struct.pack("=BQ", 1, len(key)) + key + struct.pack("=Q", 1) + b"1")

    def ask(self, key: bytes) -> None:
        """Request a notification when a key is set."""
        self._socket.sendall(struct.pack("=BQQ", 6, 1, len(key)) + key)

    def wait(self) -> None:
        """Wait for the notification."""
        assert self._socket.recv(1) == b"\0"

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class StoreHost:
    """Serve the stores of rounds with the production code, in its own process."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = (
            "import socket, sys; from ftcore.runtime.warm import store; import torch.distributed; "
            "store.serve(socket.socket(fileno=int(sys.argv[1])))"
        )
        subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self._lock = threading.Lock()
        self._ask(None)

    def open(self, round_: int) -> int:
        """Serve a store; return its port."""
        with self._lock:
            return int(self._ask({"open": round_, "host": "127.0.0.1"})["port"])

    def _ask(self, message: dict[str, Any] | None) -> dict[str, Any]:
        if message is not None:
            protocol.send(self._channel, message)
        reply, _ = protocol.receive(self._channel)
        assert reply is not None and "error" not in reply, reply
        return reply


def _swarm(pipe: Connection, *arguments: Any) -> None:
    async def main() -> None:
        await Swarm(pipe, *arguments).run()

    configure("warning")
    asyncio.run(main())


# --- the benchmark's side --------------------------------------------------------------------------------------------


@attrs.frozen
class Usage:
    """Resource usage of a process.

    Args:
        cpu_s: CPU seconds.
        rss: bytes of memory.
    """

    cpu_s: float
    rss: int


def usage(pid: int) -> Usage:
    """Return the resource usage of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Usage((int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * resource.getpagesize())


def raise_limit() -> None:
    """Raise the limit of open files to its maximum, for this process and its children."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@attrs.define
class Child:
    """A process, and the pipe to it."""

    pid: int
    pipe: Connection

    def send(self, words: object) -> None:
        """Send a message."""
        self.pipe.send(words)

    def recv(self) -> Any:
        """Receive a message."""
        return self.pipe.recv()

    def poll(self, timeout_s: float) -> bool:
        """Whether a message arrives within that time."""
        return self.pipe.poll(timeout_s)


@contextlib.contextmanager
def child(main: Callable[..., None], *arguments: object) -> Iterator[Child]:
    """Start a process that runs ``main(pipe, *arguments)``."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=main, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        yield Child(process.pid, ours)
    finally:
        process.kill()
        process.join()


@attrs.define
class Field:
    """A master, its etcd, and agents.

    Args:
        cluster: the etcd cluster.
        master: the master's process.
        pipes: pipes to the agents' processes.
        nodes: number of agents.
    """

    cluster: Cluster
    master: int
    pipes: list[Child]
    nodes: int

    def send(self, *words: object) -> list[Any]:
        """Send a message to all agents' processes; return their answers."""
        for pipe in self.pipes:
            pipe.send(words)
        return [pipe.recv() for pipe in self.pipes]

    @property
    def etcd(self) -> int:
        """Return etcd's process."""
        process: subprocess.Popen[bytes] | None = self.cluster.members[0]._process
        assert process is not None
        return process.pid

    def revision(self) -> int:
        """Return etcd's revision, which each write increments."""
        answer = json.loads(self.cluster.ctl("endpoint", "status", "-w", "json"))
        return int(answer[0]["Status"]["header"]["revision"])


@contextlib.contextmanager
def field(
    directory: Path, nodes: int, *, processes: int = 2, barrier: bool = True, timing: Timing | None = None
) -> Iterator[Field]:
    """Start a new etcd, a master as ``ftrun`` does, and that many agents that are not connected yet."""
    raise_limit()
    cluster = Cluster(directory / "etcd").start()
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        url, job = cluster.url("bench"), f"bench{nodes}"
        command = [sys.executable, "-m", "ftcore.cli.master", "--store", url, "--job", job, "--nodes", str(nodes)]
        master = subprocess.Popen([*command, "--listen", "127.0.0.1:0", "--advertise", "127.0.0.1"])
        stack.callback(master.wait)
        stack.callback(master.kill)
        asyncio.run(_elected(url, job))
        spec = JobSpec(
            argv=("train.py",), nodes_min=1 + nodes // 2, nodes_max=nodes, timing=timing or Timing().for_nodes(nodes)
        )
        processes = min(processes, nodes)
        pipes = [
            stack.enter_context(child(_swarm, url, spec, job, range(first, nodes, processes), barrier))
            for first in range(processes)
        ]
        for pipe in pipes:
            assert pipe.recv() == "ready"
        yield Field(cluster, master.pid, pipes, nodes)
        for pipe in pipes:
            pipe.send(("end",))


async def _elected(url: str, job: str) -> None:
    store = open_store(url)
    try:
        log = await store.open(JobName(job), create=True)
        async with asyncio.timeout(WAIT_S):
            while await log.last_seq() == 0:
                await asyncio.sleep(0.05)
    finally:
        await store.close()
