"""The agent's side of the store host: opens the TCPStore of a round, and reports stores lost with their host."""

import asyncio
import contextlib
import signal
from collections.abc import Callable

from ftcore.errors import UsageError
from ftcore.ids import Round
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.agent.workers.warm_link import TRIES, ParkedWorker, WarmLink, receive
from ftcore.runtime.warm import protocol
from ftcore.runtime.warm.store import ROUNDS_KEPT


class StoreLink:
    """Keeps a store host alive, from the first ``open`` until ``close``.

    Args:
        reaper: waits for the store host.
        warm: forks the store host.
        on_lost: called with each round whose store was lost, oldest first.
        port: port of the stores, if free; 0: a free port for each.
        on_note: called with a message for the user if another port is used.
    """

    def __init__(
        self,
        reaper: Reaper,
        warm: WarmLink,
        on_lost: Callable[[Round], None],
        port: int,
        on_note: Callable[[str], None],
    ) -> None:
        self._reaper = reaper
        self._warm = warm
        self._on_lost = on_lost
        self._port = port
        self._on_note = on_note
        self._host: ParkedWorker | None = None
        self._rounds: list[Round] = []
        self._lock = asyncio.Lock()
        self._restart: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The store host's process id; 0: none."""
        return self._host.pid if self._host is not None else 0

    async def open(self, round_: Round, host: str) -> int:
        """Serve a fresh store; returns its port. Raises ``UsageError``."""
        async with self._lock:
            for _ in range(TRIES):
                parked = await self._ensure()
                try:
                    protocol.send(parked.channel, {"open": round_, "host": host, "port": self._port})
                    reply, _ = await receive(parked.channel)
                except OSError:
                    reply = None
                if reply is None:
                    self._ended(parked)
                    continue
                if "error" in reply:
                    raise UsageError(f"cannot open a store for round {round_} at {host}: {reply['error']}")
                self._rounds = [*(kept for kept in self._rounds if kept != round_), round_][-ROUNDS_KEPT:]
                port = int(reply["port"])
                if self._port not in (0, port):
                    self._on_note(f"--master-port {self._port} is in use: the store of round {round_} uses port {port}")
                return port
        raise UsageError(f"cannot open a store for round {round_}: its host process died {TRIES} times")

    def close(self) -> None:
        """End the store host."""
        if self._restart is not None:
            self._restart.cancel()
        host, self._host = self._host, None
        if host is not None:
            self._reaper.forget(host.pid)
            host.channel.close()
            processes.kill(host.pid, signal.SIGKILL)

    async def _ensure(self) -> ParkedWorker:
        if self._host is None:
            host = await self._warm.store_host()
            self._host = host
            self._reaper.watch(host.pid, lambda _code, _mono: self._ended(host))
        return self._host

    def _ended(self, host: ParkedWorker) -> None:
        if host is not self._host:
            return
        self._host = None
        if not self._lock.locked():
            host.channel.close()
        lost, self._rounds = self._rounds, []
        for round_ in lost:
            self._on_lost(round_)
        self._restart = asyncio.get_running_loop().create_task(self._start_again())

    async def _start_again(self) -> None:
        async with self._lock:
            # the next ``open`` retries and reports a failure
            with contextlib.suppress(UsageError):
                await self._ensure()
