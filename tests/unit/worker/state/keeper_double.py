"""Plays the keeper of one node for training processes: staging memory, held shards, orders, and files on storage.

It speaks the keeper's messages on a real socket with real memfds, in a thread, and writes shards with the real format.
The keeper's own behaviour has tests of its own.
"""

import contextlib
import os
import queue
import socket
import threading
from pathlib import Path
from typing import Any

from ftcore.checkpoint.files import directory_name, shard_name, write_shard
from ftcore.checkpoint.manifest import commit
from ftcore.checkpoint.sources import SlotSource
from ftcore.checkpoint.storage import Storage
from ftcore.shm import messages, staging
from ftcore.shm.staging import StagingSlot


class KeeperDouble:
    """One node's keeper.

    Args:
        path: where its socket is made; short.
        url: where shards are written; empty: nowhere.
        memory: most bytes of one slot.
    """

    def __init__(self, path: Path, url: str = "", memory: int = 1 << 40) -> None:
        self.path, self.url, self.memory = path, url, memory
        self.slots: dict[int, list[tuple[int, StagingSlot]]] = {}
        self.owners: dict[int, dict[str, int]] = {}
        self.sealed: queue.Queue[tuple[int, int, bool]] = queue.Queue()
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self.asked: list[int] = []
        self._orders: dict[int, socket.socket] = {}
        self._changed = threading.Condition()
        self._written: dict[tuple[int, int], dict[int, str]] = {}
        self._peers: list[socket.socket] = []
        self._listener = messages.new_socket()
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def order(self, number: int, rank: int) -> None:
        """Order a rank to stage, once it has connected for orders."""
        with self._changed:
            assert self._changed.wait_for(lambda: rank in self._orders, 60)
            messages.send(self._orders[rank], {"stage": number})

    def held(self) -> list[dict[str, int]]:
        """The complete shards."""
        found = []
        for local_rank, pair in list(self.slots.items()):
            for number, (_, slot) in enumerate(pair):
                with contextlib.suppress(Exception):
                    index = SlotSource(slot).index
                    head = slot.header()
                    names = ("rank", "step", "round", "group", "groups", "ranks")
                    about = {name: getattr(index, name) for name in names}
                    place = {"local_rank": local_rank, "slot": number, "bytes": head.data_bytes, "mono": head.mono}
                    found.append(about | place)
        return found

    def source(self, local_rank: int, slot: int) -> SlotSource:
        """A sealed shard."""
        return SlotSource(self.slots[local_rank][slot][1])

    def forget(self, keep: int = 0) -> None:
        """Lose the memory of all local ranks but the first ones, as a node that is replaced does."""
        for local_rank in [each for each in self.slots if each >= keep]:
            for fd, slot in self.slots.pop(local_rank):
                slot.close()
                os.close(fd)

    def close(self) -> None:
        """End, as a keeper that was killed."""
        for each in (self._listener, *self._peers):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._thread.join()
        self.forget()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            hello, _ = messages.receive(peer)
            if hello is None:
                return
            if hello["hello"] == "orders":
                with self._changed:
                    self._orders[hello["rank"]] = peer
                    self._changed.notify_all()
            else:
                messages.send(peer, {"keeper": os.getpid(), "job": "demo", "log": "5a1e", "url": self.url})
            while True:
                message, fds = messages.receive(peer)
                messages.close_all(fds)
                if message is None:
                    return
                self._answer(peer, hello, message)

    def _answer(self, peer: socket.socket, hello: dict[str, int], message: dict[str, Any]) -> None:
        if "slots" in message:
            self._give(peer, hello["local_rank"], message["slots"])
        elif "held" in message:
            messages.send(peer, {"held": self.held()})
        elif "read" in message:
            fd, slot = self.slots[message["read"]["local_rank"]][message["read"]["slot"]]
            slot.pin(True)
            read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
            messages.send(peer, {"read": slot.size}, [read_only])
            os.close(read_only)
        elif "done" in message:
            self.slots[message["done"]["local_rank"]][message["done"]["slot"]][1].pin(False)
        elif "sealed" in message:
            if message["persist"] and self.url:
                self._write(hello["local_rank"], message["sealed"])
            self.sealed.put((hello["rank"], message["step"], message["persist"]))
        elif "written" in message:  # shards are written as soon as they are sealed
            messages.send(peer, {"failed": []})
        elif "staged" in message:
            self.answers.put(message | {"rank": hello["rank"]})

    def _give(self, peer: socket.socket, local_rank: int, size: int) -> None:
        self.asked.append(size)
        if size > self.memory:
            messages.send(peer, {"error": f"the memory limit is {self.memory} bytes, {size} are needed"})
            return
        known = self.slots.get(local_rank)
        if known is None or any(slot.size < size for _, slot in known):
            fds = [staging.create(size) for _ in range(2)]
            self.slots[local_rank] = known = [(fd, StagingSlot(fd)) for fd in fds]
        heads = [slot.header() for _, slot in known]
        sealed = [number for number, head in enumerate(heads) if head.sealed]
        newest = max(sealed, key=lambda number: heads[number].mono, default=-1)
        fds = [fd for fd, _ in known]
        messages.send(peer, {"slots": [slot.size for _, slot in known], "newest": newest}, fds)

    def _write(self, local_rank: int, number: int) -> None:
        slot = self.slots[local_rank][number][1]
        index = SlotSource(slot).index
        storage, directory = Storage(self.url), directory_name(index.step, index.round)
        name = shard_name(index.group, index.groups)
        with slot.data() as data:
            write_shard(storage, f"{directory}/{name}", index, data)
        with self._changed:
            written = self._written.setdefault((index.step, index.round), {})
            written[index.group] = name
            if len(written) == index.groups:
                commit(storage, directory, list(written.values()))
