"""Serves a node's workers and its agent: messages of ``ftcore.shm.messages`` on one Unix socket.

The agent listens on the socket, and starts the keeper at the first connection. If the socket is removed, the one of the
two that accepts makes it again.

A worker's connection for requests begins with ``{"hello": "worker", "rank", "local_rank", "local_ranks", "round",
"pid"}``, which the keeper answers with ``{"keeper": pid, "job", "log", "url"}``. Then:

| request | answer |
|---|---|
| ``{"slots": bytes, "copied"}`` | ``{"slots": [size, ...], "newest", "spare"}`` and descriptors, or ``{"error"}`` |
| ``{"sealed": index, "step", "persist"}`` | nothing |
| ``{"held": 1}`` | ``{"held": [shard, ...]}`` |
| ``{"read": {"local_rank", "slot"}}`` | ``{"read": size}`` and 1 descriptor, or ``{"error": text}`` |
| ``{"done": {"local_rank", "slot"}}`` | nothing |
| ``{"loaded": ...}``, ``{"skipped": ...}``, ``{"positioned": ...}`` | nothing; the agent gets it |
| ``{"replicas": ...}`` | nothing; the agent gets it |
| ``{"written": 1}`` | ``{"failed": [...]}``, when no shard of its round waits to be written |

Its connection for orders begins with ``{"hello": "orders", ...}``. The keeper sends ``{"stage": id}``, and the worker
answers ``{"staged": id, "step", "slot"}`` or ``{"staged": id, "error"}``.

Its connection for data queues begins with ``{"hello": "queues", ...}``; ``queues`` describes the messages.

The successor of a dead agent begins with ``{"hello": "agent", "job", "node"}``, and gets ``{"keeper": pid, "log"}``
with the listening sockets, or an error. ``agent_desk`` describes the messages of the agent.

In ``sealed``, a slot is its index among those of its rank; in ``held`` and ``read``, it is the number in ``held``.
``copied``: the rank's shards have no replica on another node, so they are copied to one.

When the agent dies, what it holds is saved to storage (``Persister.save_all``), and the memory is kept for a successor
for ``linger_s``. After ``bye``, the keeper finishes what it writes, and ends.

House rules: nothing here waits for a peer or for the storage. A worker's death is noticed by its process, not by its
connection alone: its children may have inherited that. What a peer sends wrongly ends its connection.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Coroutine
from typing import Any, Final

import attrs
import msgspec

from ftcore.private import SocketPath
from ftcore.runtime.keeper.agent_desk import AgentDesk
from ftcore.runtime.keeper.copies import NodeCopies
from ftcore.runtime.keeper.listener import KEEP_S, listen
from ftcore.runtime.keeper.orders import StageOrders
from ftcore.runtime.keeper.peer import Peer
from ftcore.runtime.keeper.persist import Persister
from ftcore.runtime.keeper.queues import QueueRelay
from ftcore.runtime.keeper.slots import SLOTS, SPARE, KeptSlot, MemoryRefused, SlotMemory
from ftcore.shm import messages

WORKERS_END_S: Final = 2.0
"""Workers are killed with their agent; what they sealed last is waited for at most this long, in seconds."""

SAVED_OUTCOMES: Final = frozenset({"failed", "stopped"})
"""Outcomes of a job after which the newest shards are saved before the keeper ends: the job can be resumed."""


class WorkerHello(msgspec.Struct, frozen=True):
    """The first message of a worker."""

    rank: int
    local_rank: int
    round: int
    local_ranks: int = 1


@attrs.define(eq=False)
class _ConnectedWorker:
    hello: WorkerHello
    peer: Peer
    pid: int
    pidfd: int
    reading: list[KeptSlot] = attrs.field(factory=list)


class Keeper:
    """The keeper of a node.

    Args:
        listener: the listening socket.
        control: the channel to the agent.
        copies: the listening TCP socket for other keepers; None: this node takes no copies.
    """

    def __init__(self, listener: socket.socket, control: socket.socket, copies: socket.socket | None = None) -> None:
        listener.setblocking(False)
        self._listeners = [listener] if copies is None else [listener, copies]
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._place = SocketPath(listener.getsockname())
        self._place.bound()
        self._is_own_socket = False
        self._slots = SlotMemory()
        self._orders = StageOrders()
        self._persister = Persister(self._slots, self._tell)
        self._copies = NodeCopies(self._slots, self._tell, copies)
        self._queues = QueueRelay(self._tell)
        self._desk = AgentDesk(self._slots, self._orders, self._persister, self._copies, self._queues)
        self._workers: dict[int, _ConnectedWorker] = {}
        self._workers_ended = asyncio.Event()
        self._adopted = asyncio.Event()
        self._over = asyncio.Event()
        self._terminated = asyncio.Event()
        self._leaving = False
        self._agents = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._desk.seat(Peer(control))

    async def run(self) -> None:
        """Serve until the job has ended, or no agent has come for too long."""
        self._loop.add_signal_handler(signal.SIGTERM, self._terminate)
        self._loop.add_reader(self._listener, self._accept)
        self._go(self._serve_agent())
        self._go(self._keep_socket())
        await self._over.wait()
        self._loop.remove_reader(self._listener)
        if self._is_own_socket or not self._leaving:  # else the agent removes it, or uses it again
            self._place.remove()
        self._slots.close()

    # -- connections

    async def _keep_socket(self) -> None:
        """Make the socket again if it was removed."""
        told = False
        while True:
            await asyncio.sleep(KEEP_S)
            if self._leaving:
                return
            if not self._place.missing:
                if self._desk.empty and not self._place.is_ours():
                    self._terminated.set()  # the next agent has made its own: none can take this keeper over
                continue
            try:
                made = listen(self._place)
            except OSError as error:
                if not told:
                    self._tell({"note": f"its socket was removed and cannot be made again: {error.strerror}"})
                told = True
                continue
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener, self._is_own_socket, told = made, True, False
            self._loop.add_reader(made, self._accept)
            self._tell({"note": "its socket was removed, and has been made again"})

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except OSError:  # it was the agent's turn, or no descriptor is free
            return
        self._go(self._greet(Peer(channel)))

    async def _greet(self, peer: Peer) -> None:
        try:
            message, fds = await peer.receive()
            messages.close_all(fds)
            kind = (message or {}).get("hello")
            if kind == "agent" and message is not None:
                await self._adopt(peer, message)
            elif kind in ("worker", "orders", "queues"):
                await self._serve(peer, msgspec.convert(message, WorkerHello), kind)
        except (ValueError, LookupError, TypeError) as error:  # it is not what we know: another version
            peer.send({"error": f"the keeper does not understand this: {error}"})
        finally:
            if peer is not self._desk.peer:
                peer.close()

    async def _serve(self, peer: Peer, hello: WorkerHello, kind: str) -> None:
        pid, pidfd = _process_of(peer.channel)
        if pidfd >= 0:
            self._loop.add_reader(pidfd, self._process_ended, pidfd, peer)
        worker = _ConnectedWorker(hello, peer, pid, pidfd)
        try:
            if kind == "orders":
                await self._orders.serve(peer, hello.rank, hello.round)
            elif kind == "queues":
                await self._queues.serve(peer, hello.rank)
            else:
                await self._serve_requests(worker)
        finally:
            if pidfd >= 0:
                self._loop.remove_reader(pidfd)
                os.close(pidfd)
                worker.pidfd = -1

    def _process_ended(self, pidfd: int, peer: Peer) -> None:
        self._loop.remove_reader(pidfd)  # it stays readable, and a request may still be in progress
        self._queues.drain(peer)
        peer.close()

    async def _serve_requests(self, worker: _ConnectedWorker) -> None:
        config = await self._desk.configured()
        worker.peer.send({"keeper": os.getpid(), "job": config.job, "log": config.log, "url": config.url})
        before = self._workers.get(worker.hello.local_rank)
        fresh = before is not None and before.pid != worker.pid and _runs(before.pidfd)
        self._workers[worker.hello.local_rank] = worker
        self._workers_ended.clear()
        try:
            while True:
                message, fds = await worker.peer.receive()
                messages.close_all(fds)
                if message is None:
                    return
                if "slots" in message:
                    copied = bool(message.get("copied", True))
                    fresh = self._give_slots(worker, int(message["slots"]), fresh=fresh, copied=copied)
                elif "written" in message:
                    failed = await self._persister.written(worker.hello.round)
                    worker.peer.send({"failed": [result.message() for result in failed]})
                else:
                    self._take(worker, message)
        finally:
            for kept in worker.reading:
                kept.pin(readers=-1)
            self._slots.tidy()
            if self._workers.get(worker.hello.local_rank) is worker:
                del self._workers[worker.hello.local_rank]
            if not self._workers:
                self._workers_ended.set()

    # -- requests of a worker

    def _give_slots(self, worker: _ConnectedWorker, size: int, *, fresh: bool, copied: bool) -> bool:
        """Answer a request for slots; returns whether they still must be new ones."""
        local_rank = worker.hello.local_rank
        try:
            others = {each for each in range(worker.hello.local_ranks) if not self._slots.count(each)} - {local_rank}
            pair = self._copies.pair(local_rank, size, fresh=fresh, copied=copied, others=len(others))
        except MemoryRefused as error:
            worker.peer.send({"error": str(error)})
            return fresh
        newest = self._slots.newest(local_rank)
        index = pair.index(newest) if newest is not None and newest in pair else -1
        spare = SPARE if len(pair) == SLOTS + SPARE else 0
        reply = {"slots": [kept.slot.size for kept in pair], "newest": index, "spare": spare}
        worker.peer.send(reply, [kept.fd for kept in pair])
        return False

    def _take(self, worker: _ConnectedWorker, message: dict[str, Any]) -> None:
        if "sealed" in message:
            self._sealed(worker, int(message["sealed"]), int(message["step"]), bool(message["persist"]))
        elif "held" in message:
            worker.peer.send({"held": self._slots.held()})
        elif "read" in message:
            self._open_shard(worker, self._named(message["read"]))
        elif kind := next((kind for kind in ("loaded", "skipped", "positioned") if kind in message), ""):
            loaded = message.get("loaded")
            if loaded and loaded["source"]:  # else the next save would overwrite what all ranks have just loaded
                self._slots.drop(int(loaded["step"]), worker.hello.round)
            about = {"local_rank": worker.hello.local_rank, "round": worker.hello.round}
            self._tell({kind: {**message[kind], **about}})
        elif "replicas" in message:
            self._tell({"replicas": {"groups": message["replicas"], "round": worker.hello.round}})
        elif "done" in message:
            kept = self._named(message["done"])
            if kept in worker.reading:
                worker.reading.remove(kept)
                kept.pin(readers=-1)
                self._slots.tidy()
        else:
            raise LookupError("unknown request")

    def _sealed(self, worker: _ConnectedWorker, index: int, step: int, persist: bool) -> None:
        kept = self._slots.of(worker.hello.local_rank, index)
        origin = kept.origin() if kept is not None else None
        self._slots.tidy((local_rank, each.hello.round) for local_rank, each in self._workers.items())
        if kept is not None:
            self._copies.sealed(kept)
        if not persist:
            return
        if kept is None or origin is None or origin.step != step:
            error = "it was overwritten, or cannot be read, before it was written to storage"
            self._persister.failed(worker.hello.round, step, worker.hello.rank, error)
        else:
            self._persister.persist(kept)

    def _named(self, place: dict[str, Any]) -> KeptSlot | None:
        return self._slots.numbered(int(place["local_rank"]), int(place["slot"]))

    def _open_shard(self, worker: _ConnectedWorker, kept: KeptSlot | None) -> None:
        if kept is None or kept.origin() is None:
            worker.peer.send({"error": "this shard is not in memory any more"})
            return
        try:
            fd = os.open(f"/proc/self/fd/{kept.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            worker.peer.send({"error": f"cannot open the shard: {error.strerror}"})
            return
        kept.pin(readers=1)
        worker.reading.append(kept)
        worker.peer.send({"read": kept.slot.size}, [fd])
        os.close(fd)

    # -- the agent

    def _tell(self, message: dict[str, Any]) -> None:
        self._desk.tell(message)

    async def _adopt(self, peer: Peer, message: dict[str, Any]) -> None:
        """Serve the successor of an agent that has died."""
        await self._desk.settled()
        config = self._desk.config
        owner = tuple(str(message[name]) for name in ("job", "node"))
        if self._leaving:
            peer.send({"error": "the keeper is ending"})
        elif not self._desk.empty:
            peer.send({"error": "the keeper has an agent"})
        elif config is not None and config.owner != owner:
            peer.send({"error": f"the keeper belongs to {' / '.join(config.owner)}"})
        else:
            self._desk.seat(peer)
            self._adopted.set()
            log = config.log if config is not None else ""
            peer.send({"keeper": os.getpid(), "log": log}, [listener.fileno() for listener in self._listeners])
            await self._serve_agent()

    async def _serve_agent(self) -> None:
        self._adopted.clear()
        self._agents += 1
        outcome = await self._desk.serve()
        if outcome is None:
            self._go(self._outlive())
        else:
            self._leaving = True
            self._loop.remove_reader(self._listener)
            self._copies.close()
            self._go(self._finish(outcome))

    async def _outlive(self) -> None:
        """Save what is held, and wait for the next agent."""
        agents, linger_s = self._agents, self._desk.linger_s
        if self._workers:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._workers_ended.wait(), WORKERS_END_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._persister.save_all(), linger_s)
        events = [asyncio.ensure_future(event.wait()) for event in (self._adopted, self._terminated)]
        await asyncio.wait(events, timeout=linger_s, return_when=asyncio.FIRST_COMPLETED)
        for waiting in events:
            waiting.cancel()
        if self._desk.empty and agents == self._agents:
            self._over.set()

    async def _finish(self, outcome: str) -> None:
        """Write what is to be written, and end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._persister.finish(save=outcome in SAVED_OUTCOMES), self._desk.linger_s)
        self._over.set()

    def _terminate(self) -> None:
        """React to SIGTERM: the machine or its job scheduler ends everything. A living agent decides what follows."""
        self._terminated.set()

    def _go(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _process_of(channel: socket.socket) -> tuple[int, int]:
    """Return the process that connected, and a descriptor of it; -1: the kernel gives none."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    try:
        return pid, os.pidfd_open(pid)
    except OSError:  # it has ended, or is in another process namespace
        return pid, -1


def _runs(pidfd: int) -> bool:
    if pidfd < 0:
        return True
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return not poll.poll(0)
