"""The agent's side of the store host: opens a round's TCPStore, and tells when stores were lost with their host."""

import asyncio
import contextlib
import signal
from collections.abc import Callable

from ftcore.errors import UsageError
from ftcore.ids import Round
from ftcore.runtime.agent import processes
from ftcore.runtime.agent.reaper import Reaper
from ftcore.runtime.agent.warm_link import TRIES, Parked, WarmLink, receive
from ftcore.runtime.warm import protocol
from ftcore.runtime.warm.store import ROUNDS_KEPT


class StoreLink:
    """Keeps a store host, from the first round that is opened here until ``close``.

    Args:
        reaper: waits for it.
        warm: forks it.
        on_lost: called with each round whose store was lost, oldest first.
        port: where stores are served if it is free; 0: a free port for each.
        on_note: called with a line for the user where another port was taken.
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
        self._host: Parked | None = None
        self._rounds: list[Round] = []
        self._lock = asyncio.Lock()
        self._restart: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The store host's process id; 0 if there is none now."""
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
                    raise UsageError(f"no store for round {round_} can be opened at {host}: {reply['error']}")
                self._rounds = [*(kept for kept in self._rounds if kept != round_), round_][-ROUNDS_KEPT:]
                port = int(reply["port"])
                if self._port not in (0, port):
                    self._on_note(f"--master-port {self._port} is in use: round {round_} has its store on port {port}")
                return port
        raise UsageError(f"no store for round {round_} can be opened: its host process died {TRIES} times")

    def close(self) -> None:
        """End the store host."""
        if self._restart is not None:
            self._restart.cancel()
        host, self._host = self._host, None
        if host is not None:
            self._reaper.forget(host.pid)
            host.channel.close()
            processes.kill(host.pid, signal.SIGKILL)

    async def _ensure(self) -> Parked:
        if self._host is None:
            host = await self._warm.store_host()
            self._host = host
            self._reaper.watch(host.pid, lambda _code, _mono: self._ended(host))
        return self._host

    def _ended(self, host: Parked) -> None:
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
            # the next ``open`` tries again, and says so if it fails
            with contextlib.suppress(UsageError):
                await self._ensure()
