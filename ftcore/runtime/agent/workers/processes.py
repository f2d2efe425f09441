"""Starts processes from the agent, and finds all their descendants.

House rules: the agent never forks (gRPC's threads would not survive it); it uses only ``posix_spawn``, always with a
new session and default signals. The agent is a subreaper, so everything that its workers start stays its descendant,
across forks and new sessions, and ``descendants`` finds all of it.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_PDEATHSIG = 1
_PF_EXITING: Final = 4
"""A flag of the kernel's ``/proc/PID/stat``."""
_FDS_FROM: Final = 16
"""Descriptors to pass are first moved to numbers from here on, so that no number is both a source and a target."""


def become_subreaper() -> None:
    """Make the kernel reparent orphaned descendants to this process. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if the parent has ended already.

    Args:
        parent: process id of the expected parent.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def spawn(argv: Sequence[str], env: Mapping[str, str], files: Mapping[int, int], null: Collection[int] = ()) -> int:
    """Start a program in its own session.

    Args:
        argv: program path and arguments.
        env: the complete environment.
        files: descriptors of the child, each with the descriptor of this process that it duplicates.
        null: descriptors of the child that are ``/dev/null``.

    Returns:
        The process id; register it with the ``Reaper`` before the next turn of the event loop.

    Raises:
        OSError: the program cannot be started.
    """
    moved: dict[int, int] = {}
    try:
        for target, source in files.items():
            moved[target] = fcntl.fcntl(source, fcntl.F_DUPFD_CLOEXEC, _FDS_FROM)
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in null
        ]
        actions += [(os.POSIX_SPAWN_DUP2, source, target) for target, source in moved.items()]
        return os.posix_spawn(
            argv[0],
            list(argv),
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=list(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - _ignored()),
        )
    finally:
        for fd in moved.values():
            os.close(fd)


def _ignored() -> set[signal.Signals]:
    """Signals that children must keep ignoring: SIGHUP under ``nohup``."""
    return {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()


def children(pid: int) -> list[int]:
    """Process ids of the children of all threads of a process; empty if it has ended."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        # Either the process has ended, or the kernel was built without PROC_CHILDREN.
        if os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            return found
        return [child for child in _all() if _parent(child) == pid]
    except (ProcessLookupError, PermissionError):
        pass
    return found


def descendants(pid: int, leave: Collection[int]) -> list[int]:
    """All live descendants of a process, without those in ``leave`` and their descendants.

    Raises:
        OSError: no file descriptor is free for the search.
    """
    found: list[int] = []
    stack = [child for child in children(pid) if child not in leave]
    while stack:
        current = stack.pop()
        found.append(current)
        stack += [child for child in children(current) if child not in leave]
    return found


def kill(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process, or to its process group if ``group``; ignored if it has ended."""
    if group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_child(pid: int) -> None:
    """Kill a child and wait for it, unless it was waited for already: its id may have been reused."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0] == 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def is_ending(pid: int) -> bool:
    """Whether a process is exiting or has exited: its connections are closed before its exit code is known."""
    state, flags = _state(pid)
    return state in "ZX" or bool(flags & _PF_EXITING)


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    return _state(pid)[0] in "Tt"


def _state(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[6])
