"""Workers that leave their round and wait with their state for the next one; the agent's end of ``shm.rounds``.

House rules: a worker that cannot leave, or does not in time, is killed: its rank is started anew. What a worker says
wrongly is ignored.
"""

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs

from ftcore.commands import ParkWorkers
from ftcore.errors import Refused
from ftcore.events.worker import FaultObserved
from ftcore.ids import Round
from ftcore.ports import ParkControl, Performed, Progress
from ftcore.shm import messages

MESSAGE_CHARS_MAX = 1000


@attrs.frozen
class WorkerFault:
    """A fault that a worker noticed and stays alive after; see ``fault.observed``."""

    round: Round
    local_rank: int
    kind: str
    step: int | None
    message: str
    values: dict[str, float]

    def fact(self, node: str, incarnation: str, base_rank: int) -> FaultObserved:
        """The fact for the log.

        Args:
            node: the worker's node.
            incarnation: that of its agent.
            base_rank: global rank of the node's local rank 0.
        """
        return FaultObserved(
            node=node,
            incarnation=incarnation,
            round=self.round,
            source="worker",
            kind=self.kind,
            rank=base_rank + self.local_rank,
            message=self.message,
            step=self.step,
            absolute=self.step is not None,
            values=self.values,
        )


class RoundChannel:
    """The channel to one worker.

    Args:
        loop: the agent's event loop.
        on_fault: called with each ``fault`` message.

    Attributes:
        worker_end: the worker's end, to be handed to it.
        pid: the worker.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_fault: Callable[[Mapping[str, Any]], None]) -> None:
        self._loop, self._on_fault = loop, on_fault
        self._channel, self.worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        self._channel.setblocking(False)
        self._number = 0
        self._left: asyncio.Future[None] | None = None
        self._entered: asyncio.Future[dict[str, Any] | None] | None = None
        loop.add_reader(self._channel, self._readable)

    def close_worker_end(self) -> None:
        """Close the agent's copy of the worker's end, once the worker has it."""
        self.worker_end.close()

    def leave(self, without: Sequence[int]) -> "asyncio.Future[None]":
        """Order the worker to leave its round; returns what completes when it waits, or is cancelled if it cannot.

        Args:
            without: global ranks whose memory is damaged.
        """
        self._number += 1
        self._left = self._loop.create_future()
        if not self._send({"leave": self._number, "without": list(without)}):
            self._left.cancel()
        return self._left

    def start(self, env: Mapping[str, str], fds: Sequence[int]) -> "asyncio.Future[dict[str, Any] | None]":
        """Order a worker that has left to enter a round; returns what completes with its answer, or None at its end.

        Args:
            env: its environment.
            fds: its standard output, standard error and page.
        """
        self._entered = self._loop.create_future()
        if not self._send({"start": {"env": dict(env)}}, fds):
            self._entered.set_result(None)
        return self._entered

    def close(self) -> None:
        """End the channel: its worker has ended."""
        if self._channel.fileno() < 0:
            return
        self._loop.remove_reader(self._channel)
        self._channel.close()
        self.worker_end.close()
        if self._left is not None and not self._left.done():
            self._left.cancel()
        if self._entered is not None and not self._entered.done():
            self._entered.set_result(None)

    def drain(self) -> None:
        """Read the messages that have arrived."""
        while self._channel.fileno() >= 0 and self._read():
            pass

    def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        try:
            messages.send(self._channel, message, fds)
        except OSError:
            return False
        return True

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        try:
            message, fds = messages.receive(self._channel)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            message, fds = None, []
        messages.close_all(fds)
        if message is None:
            self.close()
            return False
        if "fault" in message:
            with contextlib.suppress(TypeError, ValueError, KeyError, AttributeError):
                self._on_fault(message["fault"])
        elif message.get("left") == self._number and self._left is not None and not self._left.done():
            self._left.set_result(None)
        elif "how" in message and self._entered is not None and not self._entered.done():
            self._entered.set_result(message)
        return True


def fault_of(found: Mapping[str, Any], round_: Round, local_rank: int) -> WorkerFault:
    """Read a ``fault`` message.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    values = {str(name): float(value) for name, value in found["values"].items()}
    return WorkerFault(
        round=round_,
        local_rank=local_rank,
        kind=str(found["kind"]),
        step=None if found["step"] is None else max(0, int(found["step"])),
        message=str(found["message"])[:MESSAGE_CHARS_MAX],
        values={name: value for name, value in values.items() if math.isfinite(value)},
    )


class ParkPerformer:
    """Carries out the order to park; see ``ports.Performer``.

    Args:
        control: parks the workers.
        progress: returns the workers' progress pages, by local rank.
    """

    def __init__(self, control: ParkControl, progress: Callable[[], Collection[Progress | None]]) -> None:
        self._control, self._progress = control, progress

    async def perform(self, command: ParkWorkers, effect: str) -> Performed:
        """See ``ports.Performer``."""
        if not await self._control.park(command.grace_s):
            raise Refused("no worker of this node could leave its round")
        steps = [page.step for page in self._progress() if page is not None and page.steps > 0]
        return Performed(min(steps) if steps else None)
