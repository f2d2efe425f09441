"""The training process's side of its node's keeper: staging memory, shards of other processes, orders to stage.

The keeper's socket is in ``FTCORE_KEEPER``; ``ftcore.runtime.keeper.server`` describes the messages. The first
connection starts the keeper, and the connection ends with the keeper's process. Then the memory is useless: the next
``slots`` connects again, to a new keeper with empty memory.

House rules: standard library and ``ftcore.shm`` only. Nothing here raises because of the keeper, and no wait is
unlimited, except the wait for orders: a result says that staging is not available, and ``problem`` says why. A keeper
that does not answer is asked again only after a pause.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ftcore.shm import messages, prefault
from ftcore.shm.staging import StagingSlot

KEEPER_ENV: Final = "FTCORE_KEEPER"

HELLO_S: Final = 10.0
"""Timeout in seconds of a new connection, which may start the keeper."""

REPLY_S: Final = 10.0
"""Timeout in seconds of a reply."""

PAUSE_S: Final = 30.0
"""Pause in seconds after the first timeout; it doubles up to ``PAUSE_S_MAX``."""

PAUSE_S_MAX: Final = 600.0


class StagedShard(NamedTuple):
    """A complete shard in the keeper's memory.

    Args:
        rank: the global rank that staged it.
        local_rank: the local rank that staged it, for ``read``.
        slot: its slot, for ``read``.
        step: its step.
        round: its round.
        group: its replica group.
        groups: the number of replica groups.
        ranks: the number of ranks of that round.
        bytes: the size of its data.
        mono: monotonic nanoseconds of its seal.
        tensors: whether it has the tensors, not only the Python values of its rank.
    """

    rank: int
    local_rank: int
    slot: int
    step: int
    round: int
    group: int
    groups: int
    ranks: int
    bytes: int
    mono: int
    tensors: bool = True


class StagingPair:
    """The slots of this process: two and a spare one, or more if its shards are copied to other nodes.

    Args:
        slots: the slots.
        newest: index of the slot with the newest complete shard; -1: none.
        spare: how many of them, at the end, are written only while others are being read.
    """

    def __init__(self, slots: tuple[StagingSlot, ...], newest: int, spare: int) -> None:
        self.slots = slots
        self.newest = newest
        self.regular = slots[: len(slots) - spare]

    def choose(self, available: Callable[[], int | None] = lambda: None) -> int:
        """Return the index of the slot to write: the one that is needed least.

        Reading comes before waiting to be read: so a storage that is slower than the saves still gets complete shards.
        The newest shard is overwritten only if the others are needed more. Of several, it is the oldest one; last, a
        spare one that was never written, because it takes memory.

        Args:
            available: returns the memory that can be taken, in bytes; None: not known.
        """

        def need(index: int) -> tuple[int, bool, bool, int]:
            head = self.slots[index].header()
            return self.slots[index].pinned, index == self.newest, not head.sequence, head.mono

        best, *others = sorted(range(len(self.slots)), key=need)
        if self._is_untouched(best) and others and (left := available()) is not None and left < self.slots[best].size:
            return others[0]
        return best

    def _is_untouched(self, index: int) -> bool:
        """Whether it is a spare slot without memory."""
        return index >= len(self.regular) and not self.slots[index].header().sequence


class KeeperClient:
    """Connections to the keeper: one for requests, for any thread; one for orders, for one thread.

    Args:
        path: the keeper's socket.
        rank: the global rank of this process.
        local_rank: its local rank.
        round_: its round.
        local_ranks: number of local ranks of the node.
    """

    def __init__(self, path: str, rank: int, local_rank: int, round_: int, local_ranks: int = 1) -> None:
        self._path = path
        self._self = {"rank": rank, "local_rank": local_rank, "round": round_, "pid": os.getpid()}
        self._self["local_ranks"] = local_ranks
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._requests: socket.socket | None = None
        self._orders: socket.socket | None = None
        self._number = 0
        self._pair: StagingPair | None = None
        self._closed = False
        self._retry_at = 0.0
        self._pause_s = PAUSE_S
        self.problem = ""
        """Why the last request failed; empty if it did not."""
        self.job = self.log = self.url = ""
        """What the keeper said at the last connection: job, identity of the log, URL of the checkpoints."""

    def new_round(self, rank: int, local_rank: int, round_: int, local_ranks: int) -> None:
        """Go on in the next round: both connections are made anew.

        Args:
            rank: the global rank of this process.
            local_rank: its local rank.
            round_: the round.
            local_ranks: number of local ranks of the node.
        """
        with self._lock:
            self._self |= {"rank": rank, "local_rank": local_rank, "round": round_, "local_ranks": local_ranks}
            self._lose(self._requests, "the round has ended")
            if self._orders is not None:
                with contextlib.suppress(OSError):
                    self._orders.shutdown(socket.SHUT_RDWR)

    # -- requests

    def connect(self) -> bool:
        """Connect unless connected; returns whether it is. The first connection on a node starts the keeper."""
        with self._lock:
            if self._requests is not None and _is_open(self._requests):
                return True
            self._lose(self._requests, "the keeper of this node has ended; its memory is lost")
            if self._closed or time.monotonic() < self._retry_at:
                return False
            try:
                self._requests, reply = self._opened("worker")
            except (OSError, ValueError) as error:
                self._failed(error)
                return False
            self.job, self.log, self.url = str(reply["job"]), str(reply["log"]), str(reply["url"])
            self.problem, self._retry_at, self._pause_s = "", 0.0, PAUSE_S
            self._number += 1
            self._changed.notify_all()
            return True

    def slots(self, size: int, copied: bool = True) -> StagingPair | None:
        """Return this process's slots; each has at least ``size`` bytes. None: staging is not available.

        A thread populates new ones, except a spare one, so that copies are fast: call it some time before the first
        copy. A pair of an earlier call that is too small stays mapped while something refers to it.

        Args:
            size: the least size.
            copied: whether the keeper copies the shards to other nodes, because none there has the same state.
        """
        with self._lock:
            if not self.connect():
                return None
            if self._pair is not None and all(slot.size >= size for slot in self._pair.slots):
                return self._pair
            reply, fds = self._ask({"slots": size, "copied": copied})
            mapped: list[StagingSlot] = []
            try:
                if "slots" not in reply or len(fds) < 2:
                    return None
                for fd in fds:
                    mapped.append(StagingSlot(fd))
                pair = StagingPair(tuple(mapped), int(reply["newest"]), int(reply.get("spare", 0)))
            except (OSError, ValueError, TypeError) as error:  # no memory to map it, or another version
                for slot in mapped:
                    slot.close()
                self.problem = f"cannot map staging memory: {error}"
                return None
            finally:
                messages.close_all(fds)
            self._pair = pair
            threading.Thread(target=_populate, args=pair.regular, name="ftcore-prefault", daemon=True).start()
            return pair

    def sealed(self, slot: int, step: int, persist: bool) -> bool:
        """Report a complete shard; returns False if the keeper has ended, so that the shard is lost.

        Args:
            slot: index of the slot in the pair.
            step: its step.
            persist: whether the keeper writes it to storage, in the background.
        """
        with self._lock:
            if self._pair is None or not self._tell({"sealed": slot, "step": step, "persist": persist}):
                return False
            self._pair.newest = slot
            return True

    def held(self) -> list[StagedShard]:
        """Return the complete shards of all processes of this node; empty if the keeper does not answer."""
        with self._lock:
            reply, fds = self._ask({"held": 1}) if self.connect() else ({}, [])
            messages.close_all(fds)
        return [
            StagedShard(**{name: shard[name] for name in StagedShard._fields if name in shard})
            for shard in reply.get("held", ())
        ]

    def read(self, local_rank: int, slot: int) -> StagingSlot | None:
        """Map a shard that ``held`` returned, for reading; None: it is not there any more.

        It is kept until ``done``, or until this process ends, unless its writer has no other slot to write.
        """
        with self._lock:
            reply, fds = self._ask({"read": {"local_rank": local_rank, "slot": slot}}) if self.connect() else ({}, [])
            try:
                return StagingSlot(fds[0], writable=False) if "read" in reply and fds else None
            except (OSError, ValueError) as error:
                self.problem = f"cannot map staging memory: {error}"
                return None
            finally:
                messages.close_all(fds)

    def done(self, local_rank: int, slot: int) -> None:
        """Release a shard that ``read`` returned; the caller closes its mapping."""
        with self._lock:
            self._tell({"done": {"local_rank": local_rank, "slot": slot}})

    def loaded(self, about: dict[str, Any]) -> None:
        """Report how the state was restored, for the job's log.

        Args:
            about: ``step``, ``source``, ``seconds``, ``refused``, ``local_ranks``.
        """
        with self._lock:
            if self.connect():
                self._tell({"loaded": about})

    def skipped(self, about: dict[str, Any]) -> None:
        """Report batches that were skipped, for the job's log.

        Args:
            about: ``step``, ``batches``, ``local_ranks``.
        """
        with self._lock:
            if self.connect():
                self._tell({"skipped": about})

    def positioned(self, about: dict[str, Any]) -> None:
        """Report where the registered data continues, for the job's log.

        Args:
            about: ``step``, and what ``ElasticLoader.take_declaration`` returned.
        """
        with self._lock:
            if self.connect():
                self._tell({"positioned": about})

    def replicas(self, groups: list[list[int]]) -> None:
        """Report the replica groups of this round, as lists of global ranks, for the job's log."""
        with self._lock:
            if self.connect():
                self._tell({"replicas": groups})

    def written(self, within_s: float) -> list[str]:
        """Wait until no shard of this round waits to be written to storage.

        Args:
            within_s: longest wait in seconds.

        Returns:
            Why shards of this node were not written, or may not have been; empty: all were, or there is no keeper.
        """
        with self._lock:
            if self._requests is None:
                return []
            reply, fds = self._ask({"written": 1}, within_s)
            messages.close_all(fds)
        if "failed" not in reply:
            return [self.problem]
        return [f"rank {each['rank']}: {each['error']}" for each in reply["failed"]]

    def close(self) -> None:
        """Close both connections; a thread in ``wait_order`` returns."""
        with self._lock:
            self._closed = True
            self._lose(self._requests, "the connection to the keeper was closed")
            if self._orders is not None:
                with contextlib.suppress(OSError):
                    self._orders.shutdown(socket.SHUT_RDWR)
            self._changed.notify_all()

    # -- orders

    def wait_order(self) -> int | None:
        """Wait for an order to stage the complete state now; for one daemon thread.

        It waits as well while there is no keeper.

        Returns:
            The order's number, for ``answer``; None: this client was closed.
        """
        tried = 0
        while True:
            with self._changed:
                while not self._closed and (self._orders is None and self._number == tried):
                    self._changed.wait()
                if self._closed:
                    self._close_orders()
                    return None
                channel, tried = self._orders, self._number
            try:
                if channel is None:
                    channel, _ = self._opened("orders")
                    channel.settimeout(None)
                    with self._lock:
                        self._orders = channel
                    continue
                message, fds = messages.receive(channel)
            except (OSError, ValueError):
                message, fds = None, []
            messages.close_all(fds)
            if message is None:
                self._close_orders()
            elif "stage" in message:
                return int(message["stage"])

    def answer(self, order: int, step: int, slot: int) -> None:
        """Answer an order: the state is staged and sealed.

        Args:
            order: the order's number.
            step: the step of the shard.
            slot: index of the slot in the pair.
        """
        self._answer({"staged": order, "step": step, "slot": slot})

    def refuse(self, order: int, error: str) -> None:
        """Answer an order: the state cannot be staged, with the reason."""
        self._answer({"staged": order, "error": error})

    def _answer(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._orders is not None:
                with contextlib.suppress(OSError):
                    messages.send(self._orders, message)

    def _close_orders(self) -> None:
        with self._lock:
            channel, self._orders = self._orders, None
        if channel is not None:
            channel.close()

    # -- connections

    def _opened(self, kind: str) -> tuple[socket.socket, dict[str, Any]]:
        channel = messages.new_socket()
        try:
            channel.settimeout(HELLO_S)
            channel.connect(self._path)
            messages.send(channel, {"hello": kind, **self._self})
            reply: dict[str, Any] | None = {}
            if kind == "worker":
                reply, fds = messages.receive(channel)
                messages.close_all(fds)
            if reply is None or "error" in reply:
                raise ConnectionError((reply or {}).get("error", "it ended while it was asked"))
            return channel, reply
        except BaseException:
            channel.close()
            raise

    def _ask(self, message: dict[str, Any], within_s: float = REPLY_S) -> tuple[dict[str, Any], list[int]]:
        """Send a request and wait for its reply; empty if the keeper does not answer."""
        channel = self._requests
        assert channel is not None
        try:
            channel.settimeout(within_s)
            messages.send(channel, message)
            reply, fds = messages.receive(channel)
        except (OSError, ValueError) as error:
            self._failed(error)
            return {}, []
        if reply is None:
            self._lose(channel, "the keeper of this node has ended; its memory is lost")
            return {}, []
        self.problem = str(reply.get("error", ""))
        return reply, fds

    def _tell(self, message: dict[str, Any]) -> bool:
        """Send a message without a reply, without waiting."""
        channel = self._requests
        if channel is None:
            return False
        try:
            channel.settimeout(0)
            messages.send(channel, message)
        except OSError as error:  # it has ended, or does not read for so long that the socket is full
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        """Close the connection for requests; after a timeout, the next one waits for a pause."""
        if isinstance(error, TimeoutError | BlockingIOError):
            self._retry_at = time.monotonic() + self._pause_s
            text = f"the keeper of this node does not answer; the next try is in {self._pause_s:.0f} s"
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        else:
            text = f"the keeper of this node cannot be used: {error}"
        self._lose(self._requests, text)
        self.problem = text

    def _lose(self, channel: socket.socket | None, problem: str) -> None:
        if channel is None:
            return
        channel.close()
        self._requests, self._pair, self.problem = None, None, problem


def _populate(*slots: StagingSlot) -> None:
    for slot in slots:
        prefault.populate(slot)


def _is_open(channel: socket.socket) -> bool:
    try:
        channel.settimeout(0)
        return channel.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
