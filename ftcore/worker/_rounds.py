"""Leaves a round and enters the next one in the same process, when a fault left this process alive.

A rank leaves by itself if its collective failed, its memory is damaged or its global norm is abnormal; it says so, and
waits. Otherwise its agent orders it to leave. A thread receives the order and ends the process's communication, so that
the training thread comes out of a collective; the training thread leaves at the end of its step.

House rules: the thread communicates with the agent alone. A rank waits without a limit: its agent starts the next round
or ends the process, and the kernel ends it with its agent.
"""

import contextlib
import os
import queue
import socket
import sys
import threading
from typing import Any, Final, NamedTuple

from ftcore.shm import messages
from ftcore.shm.page import PAGE_FD_ENV, is_page
from ftcore.shm.rounds import ROUNDS_FD_ENV
from ftcore.worker import _connections, _groups
from ftcore.worker._abnormal import AbnormalStep

UCE: Final = "uce"
COLLECTIVE: Final = "collective"
NORM: Final = "norm"
"""Kinds of ``fault.observed`` that this process notices by itself and stays alive after."""

AGAIN_S: Final = 0.05
"""Interval in seconds at which communication is ended until the training thread has left: it may have begun anew."""

MESSAGE_CHARS_MAX: Final = 1000

_OF_TORCHRUN: Final = (
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables that a round may change. Others stay: a script may have set ``LOCAL_RANK`` itself."""

_PREFIXES: Final = ("FTCORE_", "TORCHELASTIC_")


class MemoryDamaged(Exception):
    """The memory of this rank's device lost its content: its state comes back from another copy.

    A script raises it inside of a step, for an error that its device or library reports for a tensor. The device itself
    must still work.
    """


class NextRound(NamedTuple):
    """The round to enter.

    Args:
        env: the environment of a new process of this round.
        fds: standard output, standard error and the progress page.
    """

    env: dict[str, str]
    fds: tuple[int, ...]


class RoundLink:
    """The worker's end of the channel to its agent; see ``shm.rounds``.

    Args:
        channel: the socket.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._inbox: queue.SimpleQueue[tuple[dict[str, Any] | None, list[int]]] = queue.SimpleQueue()
        self._out = threading.Event()
        self.ordered = False
        """Whether an order to leave was received since the last round was entered."""
        threading.Thread(target=self._serve, name="ftcore-rounds", daemon=True).start()

    def _serve(self) -> None:
        self._channel.settimeout(None)
        message: dict[str, Any] | None = {}
        while message is not None:
            try:
                message, fds = messages.receive(self._channel)
            except (OSError, ValueError):
                message, fds = None, []
            if message is not None and "leave" in message:
                self.ordered = True
                self._inbox.put((message, fds))
                _connections.drain_and_shut_down()
                while not self._out.wait(AGAIN_S):
                    _connections.shut_down()
            else:
                self._inbox.put((message, fds))

    def report(self, kind: str, step: int | None, text: str, **values: float) -> None:
        """Report a fault to the agent, without waiting."""
        fault = {"kind": kind, "step": step, "message": text[:MESSAGE_CHARS_MAX], "values": values}
        self._send({"fault": fault})

    def out(self) -> None:
        """Note that the training thread is out of all communication, and begins none before the next round."""
        self._out.set()

    def wait_order(self) -> tuple[list[int], int] | NextRound | None:
        """Wait for the agent.

        Returns:
            For an order to leave: global ranks whose memory is damaged, and the number for ``left``. Or the round to
            enter. None: the agent has ended.
        """
        while True:
            message, fds = self._inbox.get()
            if message is None:
                return None
            if "leave" in message:
                messages.close_all(fds)
                return [int(rank) for rank in message.get("without", ())], int(message["leave"])
            if "start" in message:
                return NextRound(dict(message["start"]["env"]), tuple(fds))
            messages.close_all(fds)

    def left(self, number: int) -> None:
        """Answer an order to leave."""
        self._send({"left": number})

    def entered(self) -> None:
        """Tell the agent that this process takes part in the next round."""
        self.ordered = False
        self._out.clear()
        self._send({"how": "kept"})

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the agent has ended: the kernel ends this process, too
            messages.send(self._channel, message)


def open_link() -> RoundLink | None:
    """Return the link to the agent; None: there is none, so this process belongs to one round."""
    text = os.environ.get(ROUNDS_FD_ENV, "")
    if not text.isdigit():
        return None
    try:
        return RoundLink(socket.socket(fileno=int(text)))
    except OSError:
        return None


def kind_of(error: BaseException) -> str:
    """The kind of fault that an error of a step is; empty: an error of the script."""
    if isinstance(error, MemoryDamaged):
        return UCE
    if isinstance(error, AbnormalStep):
        return NORM
    return COLLECTIVE if _groups.is_failure(error) else ""


def become(found: NextRound) -> int:
    """Take over the environment and the output of a round; returns the descriptor of its page."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    stdout, stderr, page = found.fds
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    former = os.environ.get(PAGE_FD_ENV, "")
    if former.isdigit() and is_page(int(former)):
        os.close(int(former))  # it stays mapped
    for name in list(os.environ):
        if name.startswith(_PREFIXES) and name not in found.env and name != ROUNDS_FD_ENV:
            del os.environ[name]
    wanted = {name: text for name, text in found.env.items() if name in _OF_TORCHRUN or name.startswith(_PREFIXES)}
    os.environ.update(wanted | {PAGE_FD_ENV: str(page)})
    return page
