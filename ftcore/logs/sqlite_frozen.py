"""Kill a frozen writer: a process stopped (SIGSTOP, a debugger) during a write keeps SQLite's write lock.

``/proc/locks`` (proc_locks(5)) lists locks: ``1: POSIX ADVISORY WRITE pid major:minor:inode start end``. A writer in
WAL mode holds byte 120 of ``<file>-shm`` (https://www.sqlite.org/walformat.html, "WAL Locks").
"""

import contextlib
import os
import signal
from pathlib import Path

WRITE_LOCK = 120
"""The byte of the shared-memory file that a writer locks."""

_STOPPED = ("T", "t")
"""States of a stopped process (proc_pid_stat(5))."""


def end_frozen_writer(log: Path) -> int:
    """Kill the process that holds a log's write lock, if it is stopped.

    Only for a candidate, after the leader's lease has expired: writes of the killed process would be fenced anyway.

    Args:
        log: the log file.

    Returns:
        The process ID; 0 if there is no such process or this user may not kill it.
    """
    pid = _writer(log)
    if not pid or _state(pid) not in _STOPPED:
        return 0
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return 0
    import structlog  # not for those who only read a log

    structlog.get_logger().warning("killed a stopped process that held the write lock of the log", pid=pid)
    return pid


def _writer(log: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"{log}-shm").stat()
        file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if len(words) == 8 and words[1] == "POSIX" and words[3] == "WRITE" and words[5] == file:
                last = float("inf") if words[7] == "EOF" else int(words[7])
                if int(words[6]) <= WRITE_LOCK <= last:
                    return int(words[4])
    return 0


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""
