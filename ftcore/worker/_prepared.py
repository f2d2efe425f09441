"""A prepared worker: it was started before its round, and waits where it first asks for its rank.

The variables that a round defines (``shm.rounds.OF_ROUND``) are missing in its environment. Code that reads one of
them, in the script, in torch or in ftcore, waits for the round. Then the process has the environment, the output and
the page of a worker of that round, and the variable is there.

House rules: only the process that was started waits. Its forked children do not, and never learn their rank: one that
asks for it gets an error. A process whose optimizer steps before it has asked trains alone and would overwrite
checkpoints of the job: it is ended, and so is such a child. If memory is short, the kernel ends
waiting processes first. ``RoundLink`` does not fit: it shuts down connections, and the set-up may have opened some.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

from ftcore.shm import messages
from ftcore.shm.page import PageWriter
from ftcore.shm.rounds import OF_ROUND, ROUNDS_FD_ENV
from ftcore.worker import _rate, _rounds
from ftcore.worker._boundary import step_boundary
from ftcore.worker._empty_state import makes_empty_state
from ftcore.worker._imports import when_imported
from ftcore.worker._progress import progress
from ftcore.worker._sections import sections

OOM_SCORE: Final = "1000"
"""The largest ``oom_score_adj``; see proc(5)."""

_UNKNOWN: Final = "not known before the round"
"""``RANK`` and ``WORLD_SIZE`` of programs started before the round: they fail, and do not train alone."""

_lock = threading.Lock()
_at_entry: list[Callable[[], object]] = []
_waiting_pid = 0
"""The process that waits for its round; 0: none. A child that was forked before keeps its parent's."""


class _PreparedEnviron(os._Environ[str]):
    """``os.environ`` before the round."""

    def __getitem__(self, name: str) -> str:
        if name in OF_ROUND:
            _wait()
        return os._Environ.__getitem__(self, name)  # it may be of that class now


def install() -> None:
    """Let this process wait for its round."""
    global _waiting_pid
    if not _waiting_pid:
        _waiting_pid = os.getpid()
        _at_entry.append(partial(_rate_for_oom, _rate_for_oom(OOM_SCORE)))
        os.environ.__class__ = _PreparedEnviron
        for name in ("RANK", "WORLD_SIZE"):
            os.putenv(name, _UNKNOWN)  # for programs alone: `os.environ` has none of them
        when_imported("torch", _end_before_training)


def _rate_for_oom(score: str) -> str:
    """Set how readily the kernel ends this process if memory is short; returns the score before, empty if not known."""
    before = ""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "r+") as file:
        before = file.read().strip()
        file.seek(0)
        file.write(score or before)
    return before


def _is_waiting() -> bool:
    return _waiting_pid == os.getpid()


def _wait() -> None:
    global _waiting_pid
    if _waiting_pid and not _is_waiting():  # it may not have the lock either
        raise RuntimeError("this process was forked by a prepared worker before the round, so it has no rank")
    with _lock:
        if not _is_waiting():
            return  # another thread has waited
        with socket.socket(fileno=os.dup(int(os.environ[ROUNDS_FD_ENV]))) as channel:
            try:
                _enter(_round(channel))
                messages.send(channel, {"how": "kept"})
            except ConnectionError:
                os._exit(1)  # the agent has ended
            except (OSError, ValueError) as error:
                _exit(f"it cannot enter its round: {error}")
        os.environ.__class__ = os._Environ
        _waiting_pid = 0


def _exit(why: str) -> NoReturn:
    print(f"ftcore: {why}", file=sys.stderr, flush=True)
    os._exit(1)


def _round(channel: socket.socket) -> _rounds.NextRound:
    channel.settimeout(None)
    while True:
        message, fds = messages.receive(channel)
        if message is None:
            raise ConnectionError("the agent has ended")
        if "start" in message:
            return _rounds.NextRound(dict(message["start"]["env"]), tuple(fds))
        messages.close_all(fds)
        if "leave" in message:
            messages.send(channel, {"left": message["leave"]})


def _enter(found: _rounds.NextRound) -> None:
    page = PageWriter(_rounds.become(found))
    progress().new_round(page)
    sections().new_round(page.sections)
    step_boundary().new_round(page.boundary)
    if "torch" in sys.modules:
        _rate.install()
    for each in _at_entry:
        each()


def _end_before_training() -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def end(*_: Any) -> None:
        if _waiting_pid and not makes_empty_state():
            _exit("it trains before it has asked for its rank, so it cannot be prepared for a round")

    if not _waiting_pid:
        return

    _at_entry.append(register_optimizer_step_pre_hook(end).remove)
