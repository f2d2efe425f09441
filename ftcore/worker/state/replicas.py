"""Replica groups: ranks that hold the same pieces, found by comparing digests of what each rank holds.

Ranks exchange digests through the store of the process group, in the staging thread: no collective, nothing on the step
path. Rank 0 collects them and publishes the table. The digest leaves out the state of optimizers, which follows the
parameters, so the table is made once. It is made again only when all ranks register or split something else.

House rules: without a process group, each rank is a group of its own. A wait ends at its deadline, or at once when the
process is asked to stage because other ranks have died.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch.distributed as dist

POLL_S: Final = 0.005
POLL_S_MAX: Final = 0.1
_KEY: Final = "ftcore/replicas"
_PF_EXITING: Final = 4
"""A flag of the kernel's ``/proc/PID/stat``."""


class ReplicaGroups(NamedTuple):
    """The replica groups, seen from one rank.

    Args:
        rank: the rank.
        group_of: the group of each rank; groups are numbered by their first rank.
        node_of: the node of each rank, as a number.
        pid_of: the process of each rank; empty: not known.
    """

    rank: int
    group_of: tuple[int, ...]
    node_of: tuple[int, ...]
    pid_of: tuple[int, ...] = ()

    @property
    def group(self) -> int:
        """The rank's group."""
        return self.group_of[self.rank]

    @property
    def groups(self) -> int:
        """The number of groups."""
        return max(self.group_of) + 1

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks of the rank's group."""
        return tuple(rank for rank, group in enumerate(self.group_of) if group == self.group)

    def table(self) -> list[list[int]]:
        """The ranks of each group, in ascending order."""
        return [[rank for rank, of in enumerate(self.group_of) if of == group] for group in range(self.groups)]

    @property
    def stages(self) -> bool:
        """Whether the rank is the first one of its group on its node: it stages the tensors."""
        node = self.node_of[self.rank]
        return self.rank == next(rank for rank in self.members if self.node_of[rank] == node)

    def stages_now(self, without: Collection[int] = ()) -> bool:
        """Whether the rank stages tensors if others have died: it is the first living one of its group on its node.

        Args:
            without: ranks that live, but whose memory is damaged.
        """
        node = self.node_of[self.rank]
        before = [
            rank for rank in self.members if rank < self.rank and self.node_of[rank] == node and rank not in without
        ]
        return not any(_is_alive(self.pid_of[rank]) for rank in before if self.pid_of)

    @property
    def elsewhere(self) -> bool:
        """Whether a rank of the group on another node stages the same tensors."""
        return len({self.node_of[rank] for rank in self.members}) > 1

    @property
    def persists(self) -> bool:
        """Whether the rank is the first one of its group: its shard is written to storage."""
        return self.rank == self.members[0]


def _is_alive(pid: int) -> bool:
    """Whether a process lives and is not exiting; its sockets are closed before it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and not int(fields[6]) & _PF_EXITING


def numbered(digests: Sequence[str]) -> tuple[int, ...]:
    """Number equal digests by their first place."""
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(digest, len(numbers)) for digest in digests)


def alone(rank: int, size: int) -> ReplicaGroups:
    """Groups of ranks that cannot compare: one for each rank."""
    return ReplicaGroups(rank, tuple(range(size)), tuple(range(size)))


def node_name() -> str:
    """What ranks of one node have in common: ``ftrun``'s number of the node, or the host's name."""
    return os.environ.get("GROUP_RANK") or socket.gethostname()


def place() -> tuple[int, int]:
    """The rank and the number of ranks: those of the process group, else those of the environment."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def is_connected() -> bool:
    """Whether ranks can exchange something."""
    return bool(dist.is_available() and dist.is_initialized())


class RankLink(NamedTuple):
    """This rank's place, and how it reaches the others; taken by the training thread.

    What the staging thread exchanges must not depend on when it runs: the process group may have been made or destroyed
    meanwhile.

    Args:
        rank: the rank.
        size: the number of ranks.
        store: the store of the default process group; None: there is none.
    """

    rank: int
    size: int
    store: Any


def link() -> RankLink:
    """Return this rank's place and the store of the process group as they are now."""
    store = dist.distributed_c10d._get_default_store() if is_connected() else None
    return RankLink(*place(), store)


class ReplicaStore:
    """Small messages between ranks through the store of the default process group; for the staging thread.

    Args:
        hurry: set when waiting makes no sense any more.
    """

    def __init__(self, hurry: threading.Event) -> None:
        self._hurry = hurry
        self._made = 0

    def agree(self, here: RankLink, digest: str, timeout_s: float) -> ReplicaGroups | None:
        """Exchange digests; all ranks call it for the same number of times.

        Args:
            here: this rank.
            digest: of its pieces.
            timeout_s: how long to wait for the other ranks, in seconds.

        Returns:
            The groups; None: not all ranks have called it in time.
        """
        rank, size, store = here
        if size == 1:
            return alone(0, 1)
        key = f"{_KEY}/{self._made}"
        store.set(f"{key}/{rank}", json.dumps([digest, node_name(), os.getpid()]))
        deadline = time.monotonic() + timeout_s
        if rank == 0:
            keys = [f"{key}/{other}" for other in range(size)]
            if not self._wait(store, keys, deadline):
                return None
            found = [json.loads(store.get(each)) for each in keys]
            digests, nodes, pids = zip(*found, strict=True)
            store.set(f"{key}/table", json.dumps([numbered(digests), numbered(nodes), pids]))
        elif not self._wait(store, [f"{key}/table"], deadline):
            return None
        groups, nodes, pids = json.loads(store.get(f"{key}/table"))
        self._made += 1
        return ReplicaGroups(rank, tuple(groups), tuple(nodes), tuple(pids))

    def publish(self, here: RankLink, name: str, text: str) -> None:
        """Leave a text for another rank."""
        here.store.set(f"{_KEY}/{name}", text)

    def collect(self, here: RankLink, names: Sequence[str], timeout_s: float) -> dict[str, str]:
        """Take texts that other ranks publish, and remove them.

        Args:
            here: this rank.
            names: their names.
            timeout_s: how long to wait for them, in seconds.

        Returns:
            The texts that came in time.
        """
        store, found = here.store, {}
        deadline = time.monotonic() + timeout_s
        for name in names:
            key = f"{_KEY}/{name}"
            if self._wait(store, [key], deadline):
                found[name] = store.get(key).decode()
                store.delete_key(key)
        return found

    def _wait(self, store: Any, keys: list[str], deadline: float) -> bool:
        """Wait for keys; returns whether all exist. Polls: a blocking wait would lock the store for the main thread."""
        return _poll(lambda: bool(store.check(keys)), deadline, self._hurry)


def _poll(is_done: Callable[[], bool], deadline: float, hurry: threading.Event) -> bool:
    pause_s = POLL_S
    while not is_done():
        if time.monotonic() >= deadline or hurry.wait(pause_s):
            return False
        pause_s = min(1.5 * pause_s, POLL_S_MAX)
    return True
