"""The only caller of ``waitpid`` in the agent: collects the exit status of every child.

Children are the agent's own and, because it is a subreaper, all orphans among their descendants. No other code in the
process may wait for children: ``asyncio`` and ``subprocess`` would lose their statuses to the reaper.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

Ended = Callable[[int, int], None]
"""Called with the exit code (negative: the signal) and the monotonic nanoseconds at which it was noticed."""


class Reaper:
    """Waits for all children of this process; a process can have only one reaper.

    Must be created in the main thread, inside the event loop that it uses.
    """

    _open = False

    def __init__(self) -> None:
        assert not Reaper._open, "a second reaper would take the first one's children"
        Reaper._open = True
        self._watched: dict[int, Ended] = {}
        self._unclaimed: dict[int, tuple[int, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self.drain)
        self.drain()  # no signal arrives for children that ended before

    @property
    def watched(self) -> set[int]:
        """Process ids of watched children: the agent's own, as opposed to inherited orphans."""
        return set(self._watched)

    def watch(self, pid: int, ended: Ended, since: int = 0) -> None:
        """Have ``ended`` called once, when the child ends.

        Args:
            pid: the child.
            ended: the callback, called in the event loop.
            since: monotonic nanoseconds at which the child was alive. If it has ended since, ``ended`` is called at
                once. Without ``since``, an unclaimed status might belong to an older process with that id.
        """
        status = self._unclaimed.pop(pid, None)
        if since and status is not None and status[1] >= since:
            self._loop.call_soon(ended, *status)
        else:
            self._watched[pid] = ended

    def forget(self, pid: int) -> None:
        """Stop watching."""
        self._watched.pop(pid, None)

    def drain(self) -> None:
        """Collect the status of every child that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            ended = self._watched.pop(pid, None)
            now = time.monotonic_ns()
            code = os.waitstatus_to_exitcode(status)
            if ended is not None:
                ended(code, now)
            else:
                self._unclaimed[pid] = (code, now)
                while len(self._unclaimed) > 1024:
                    del self._unclaimed[next(iter(self._unclaimed))]

    def close(self) -> None:
        """Stop waiting for children."""
        Reaper._open = False
        self._loop.remove_signal_handler(signal.SIGCHLD)
        self._watched.clear()
