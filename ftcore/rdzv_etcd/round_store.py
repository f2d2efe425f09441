"""The store that torchrun's agents share in a round: the round's TCPStore, with three differences.

- Ranks are not negotiated through it: the event log has them, and each node gets its own from the master. So an agent
  never waits in the store for another agent that may be dead.
- A wait ends when the round ends.
- A lost connection is not an error: the serving node has passed the last barrier or is dead, and the log records both.

The agents' keys have a prefix that separates them from the workers' keys on the same server.
"""

import datetime
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

ROLE_INFO = "torchelastic/role_info/"
ASSIGNED = "torchelastic/assigned_ranks/"
SLICE = datetime.timedelta(seconds=0.5)
"""Longest wait before the state of the round and signals are checked."""


class RoundStore(dist.Store):  # type: ignore[misc]  # torch's base is untyped
    """See the module.

    Args:
        store: the round's store, with a prefix.
        ranks: global rank of the node's first worker, workers in the world; both again within the node's role.
        over: whether the round is over for this node.
        counting: called before a counter is used. torchrun uses one when its workers have ended, even if it has not
            monitored them before.
    """

    def __init__(
        self, store: Any, ranks: tuple[int, int, int, int], over: Callable[[], bool], counting: Callable[[], None]
    ) -> None:
        super().__init__()
        self._store = store
        self._ranks = json.dumps(ranks)
        self._over = over
        self._counting = counting
        self._timeout = datetime.timedelta(seconds=300)
        self._role = b""

    @property
    def timeout(self) -> datetime.timedelta:
        """Default timeout of ``wait`` and ``get``."""
        return self._timeout

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the default timeout."""
        self._timeout = timeout

    def set(self, key: str, value: Any) -> None:
        """Store a value; values for the negotiation of ranks stay in this process."""
        if key.startswith(ROLE_INFO):
            self._role = value if isinstance(value, bytes) else str(value).encode()
        elif not key.startswith(ASSIGNED):
            self._store.set(key, value)

    def get(self, key: str) -> Any:
        """Wait for a key and return its value."""
        if key.startswith(ASSIGNED):
            return self._ranks.encode()
        self.wait([key])
        return self._store.get(key)

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """``set`` each."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def multi_get(self, keys: Sequence[str]) -> list[Any]:
        """``get`` each; the first agent reads the roles this way, to assign ranks, which ``set`` ignores."""
        return [self._role if key.startswith(ROLE_INFO) else self.get(key) for key in keys]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; 0 if the store cannot be reached."""
        self._counting()
        try:
            return int(self._store.add(key, amount))
        except dist.DistError:
            return 0

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist."""
        return bool(self._store.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait until all keys exist, the round is over, or the store is lost.

        Raises:
            dist.DistStoreError: none of these happened within the timeout.
        """
        until = time.monotonic() + (timeout or self._timeout).total_seconds()
        while not self._over():
            try:
                self._store.wait(list(keys), SLICE)
                return
            except dist.DistNetworkError:
                return
            except dist.DistStoreError:
                if time.monotonic() > until:
                    raise
