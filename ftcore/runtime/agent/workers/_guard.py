"""The guard process: after the agent has ended in any way, kills the processes that its workers left running.

Run as a file by ``python -I -S``, with the agent's pipe on descriptor 0 and the agent's tag as its argument; it
imports nothing of ftcore. The kernel kills workers with the agent (parent-death signal), but not their children. The
pipe has the sessions to end (``+ID``, ``-ID``, one per line). At its end of file the guard kills those sessions and
every process with the tag in its environment, until none is left.
"""

import os
import signal
import sys
import time

QUIET_ROUNDS = 3
ROUND_S = 0.02
GIVE_UP_S = 30.0


def main(tag: bytes) -> None:
    """Wait for the agent's end, then kill the remaining processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # inherited by the agent
    sessions: set[int] = set()
    buffer = b""
    while chunk := os.read(0, 65536):
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            (sessions.add if line[:1] == b"+" else sessions.discard)(int(line[1:]))
    quiet, deadline = 0, time.monotonic() + GIVE_UP_S
    while quiet < QUIET_ROUNDS and time.monotonic() < deadline:
        victims = _victims(tag, sessions)
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        quiet = 0 if victims else quiet + 1
        time.sleep(ROUND_S)


def _victims(tag: bytes, sessions: set[int]) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X"):
                continue
            if int(session) in sessions:
                found.append(int(name))
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                if tag in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1].encode())
