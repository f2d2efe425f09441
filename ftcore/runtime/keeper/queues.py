"""Data queues in the keeper: what workers say about them goes to the agent, and data shards to the workers.

A worker sends ``{"queue": name, "round", "rank"}`` with any of

| key | meaning |
|---|---|
| ``"open": {...}, "step"`` | it begins to read: what the queue consists of, and the last completed step |
| ``"want"`` | how many data shards it wants in this round |
| ``"marks": [[step, done, offset, rate], ...]`` | how far it was; see ``events/queue.py`` |

and gets ``{"queue", "round", "rank", "leases": [[at, first, after, offset], ...], "over", "refused"}``.

House rules: what a worker has sent counts, also if it was killed right after: it is read before the agent gets an
answer. Marks wait a moment, so that many steps become one report; what a worker waits for does not.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from ftcore.runtime.keeper.peer import Peer
from ftcore.shm import messages

REPORT_S: Final = 0.25
"""How long marks wait, in seconds."""

MARKS_MAX: Final = 256
"""Marks of one report; of more, older ones are left out."""

Key = tuple[str, int, int]
"""Queue, round and rank."""


class QueueRelay:
    """The workers that read data queues.

    Args:
        tell: reports to the agent.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._peers: dict[Peer, dict[Key, None]] = {}
        self._pending: dict[Key, dict[str, Any]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self, peer: Peer, rank: int) -> None:
        """Serve a worker's connection until it ends."""
        self._peers[peer] = {}
        try:
            while True:
                message, fds = await peer.receive()
                messages.close_all(fds)
                if message is None:
                    return
                self._take(peer, message)
        finally:
            self._end(peer)
            self._send()

    def _end(self, peer: Peer) -> None:
        for key in self._peers.pop(peer, ()):
            self._add(key, {"closed": True})

    def drain(self, peer: Peer) -> None:
        """Read what a worker that has ended has sent before."""
        while peer in self._peers and not peer.closed:
            try:
                message, fds = messages.receive(peer.channel)
            except (OSError, ValueError):
                return
            messages.close_all(fds)
            if message is None:
                self._end(peer)
            else:
                self._take(peer, message)

    def flush(self) -> None:
        """Report everything that workers have sent."""
        for peer in list(self._peers):
            self.drain(peer)
        self._send()

    def deliver(self, message: dict[str, Any]) -> None:
        """Hand data shards to the worker that reads this queue in this round as this rank."""
        key = _key(message)
        for peer, keys in self._peers.items():
            if key in keys:
                peer.send(message)

    def _take(self, peer: Peer, message: dict[str, Any]) -> None:
        key = _key(message)
        self._peers[peer] = {each: None for each in self._peers[peer] if each[1] == key[1]} | {key: None}
        self._add(key, message)
        if "open" in message or "want" in message:
            self._send()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_S, self._send)

    def _add(self, key: Key, message: dict[str, Any]) -> None:
        name, round_, rank = key
        pending = self._pending.setdefault(key, {"queue": name, "round": round_, "rank": rank, "marks": []})
        merge_marks(pending["marks"], message.get("marks", ()))
        pending["closed"] = False
        pending.update({each: value for each, value in message.items() if each != "marks"})

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        pending, self._pending = self._pending, {}
        for message in pending.values():
            self._tell({"queue": message})


def _key(message: dict[str, Any]) -> Key:
    return str(message["queue"]), int(message["round"]), int(message["rank"])


def merge_marks(marks: list[Any], more: Any) -> None:
    """Add marks to earlier ones: those of equal steps become one.

    Args:
        marks: the earlier ones, changed in place.
        more: later ones.
    """
    for step, done, offset, rate in more:
        if marks and (marks[-1][0] == step or (rate >= 0 and marks[-1][3] == rate)):
            marks[-1] = [step, done, offset, rate]
        else:
            marks.append([step, done, offset, rate])
    if len(marks) > MARKS_MAX:
        del marks[: len(marks) - MARKS_MAX]
        marks[0][3] = -1
