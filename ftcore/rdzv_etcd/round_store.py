"""The store that torchrun's agents share in a round: the round's TCPStore, with three differences.

- Ranks are not negotiated through it: the log has fixed them, and each node was told its own. So an agent never waits
  there for another one that may be dead already.
- Nobody waits on it for longer than the round lasts.
- That it is gone is no error: whoever served it has passed the last barrier or is dead, and either is in the log.

The keys of agents have a prefix, so that they never meet those of workers, which use the same server.
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
"""How long one wait goes on before the round is looked at again; signals are obeyed as often."""


class RoundStore(dist.Store):  # type: ignore[misc]  # torch's base is untyped
    """See the module.

    Args:
        store: the round's store, prefixed.
        ranks: global rank of the node's first worker, workers in the world; the same within the node's role.
        over: whether the round is over for this node.
        counting: called before a counter is used: torchrun does so when its workers have ended, even if it has never
            looked at them before.
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
        """How long ``wait`` and ``get`` wait."""
        return self._timeout

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set it."""
        self._timeout = timeout

    def set(self, key: str, value: Any) -> None:
        """Store a value; what only serves the negotiation of ranks is kept here."""
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
        """``get`` each; the first agent reads the roles this way, to deal out ranks that ``set`` does not keep."""
        return [self._role if key.startswith(ROLE_INFO) else self.get(key) for key in keys]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; 0 if the store is gone."""
        self._counting()
        try:
            return int(self._store.add(key, amount))
        except dist.DistError:
            return 0

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._store.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait until all keys are there, the round is over, or the store is gone.

        Raises:
            dist.DistStoreError: none of that came in time.
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
