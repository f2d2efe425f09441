"""Starting processes from the agent, and finding all that they left behind.

House rules: the agent never forks (grpc's threads would not survive it): ``posix_spawn`` only, always into an own
session, with default signals. The agent is a subreaper, so whatever its workers start stays its descendant, however
often it forks and whatever session it takes; ``descendants`` therefore finds all of it, without marks.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_PDEATHSIG = 1
_FDS_FROM: Final = 16
"""Descriptors to pass are moved up to here, so that no number is both a source and a target."""


def become_subreaper() -> None:
    """Inherit the orphans among this process's descendants. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; at once if that has happened already.

    Args:
        parent: process id of the parent that is meant.
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
        env: its whole environment.
        files: descriptor there -> descriptor here.
        null: descriptors there that are ``/dev/null``.

    Returns:
        Its process id; tell the ``Reaper`` before the event loop turns.

    Raises:
        OSError: it cannot be started.
    """
    moved: dict[int, int] = {}
    try:
        for there, here in files.items():
            moved[there] = fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, _FDS_FROM)
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in null
        ]
        actions += [(os.POSIX_SPAWN_DUP2, here, there) for there, here in moved.items()]
        return os.posix_spawn(
            argv[0],
            list(argv),
            dict(env),
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=list(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - _deaf_to()),
        )
    finally:
        for fd in moved.values():
            os.close(fd)


def _deaf_to() -> set[signal.Signals]:
    """What ``nohup`` had ignored stays ignored by all that is started."""
    return {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()


def children(pid: int) -> list[int]:
    """Process ids of the children of all threads of a process; empty if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found += map(int, file.read().split())
    except FileNotFoundError:
        # Either the process is gone, or the kernel was built without PROC_CHILDREN.
        if os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            return found
        return [child for child in _all() if _parent(child) == pid]
    except (ProcessLookupError, PermissionError):
        pass
    return found


def descendants(pid: int, leave: Collection[int]) -> list[int]:
    """All living descendants of a process, without those in ``leave`` and below them.

    Raises:
        OSError: they cannot be looked for, as no file descriptor is left.
    """
    found: list[int] = []
    stack = [child for child in children(pid) if child not in leave]
    while stack:
        current = stack.pop()
        found.append(current)
        stack += [child for child in children(current) if child not in leave]
    return found


def kill(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process, or to its group as well if it leads one; one that is gone is no error."""
    if group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
            return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_child(pid: int) -> None:
    """Kill a child and wait for it; if somebody has waited for it already, its number may be another's by now."""
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
