"""The one owner of ``waitpid`` in the agent: learns of every child's end within a turn of the event loop.

Children are the agent's own and, because it is a subreaper, every orphan among their descendants. Nobody else in the
process may wait for children: asyncio's and ``subprocess``'s own waiting would lose their statuses to this one.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable

Ended = Callable[[int, int], None]
"""Called with the exit code (negative: the signal) and the monotonic nanoseconds at which it was noticed."""


class Reaper:
    """Waits for all children of this process: there is one at a time.

    Made in the main thread, inside the event loop that is to be used.
    """

    _open = False

    def __init__(self) -> None:
        assert not Reaper._open, "a second reaper would take the first one's children"
        Reaper._open = True
        self._watched: dict[int, Ended] = {}
        self._unclaimed: dict[int, tuple[int, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self.drain)
        self.drain()  # of what ended before, no signal comes any more

    @property
    def watched(self) -> set[int]:
        """Process ids that somebody watches: the agent's own, as opposed to inherited orphans."""
        return set(self._watched)

    def watch(self, pid: int, ended: Ended, since: int = 0) -> None:
        """Have ``ended`` called once, when the child ends.

        Args:
            pid: the child.
            ended: what to call, from the event loop.
            since: monotonic nanoseconds before which it surely lived. A child that ended after it is told of at
                once; without this a status that nobody claimed could belong to an older process of that number.
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
        """Collect every child that has ended by now."""
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
