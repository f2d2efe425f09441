"""Worker processes of a data loader that do nothing while their rank waits for them.

A rank that waits for a batch wakes up every few seconds, and so does a worker process that waits for its next task. So
a rank that waits for its loader always looks active. But a worker process whose main thread has not run at all since
the rank began to wait for it is stuck: in a lock that it inherited from a thread which does not exist in the fork, or
in a read that gets no answer.
"""

from typing import Final

import attrs

from ftcore.runtime.agent.telemetry import samples

LOOK_S: Final = 10.0
"""Seconds without any activity from which on a worker process counts as stuck; an idle one wakes up every 5 s."""

BUSY_BYTES_S: Final = samples.BUSY_BYTES_S


@attrs.define
class LoaderWatch:
    """Watches the loader processes of one rank.

    Attributes:
        stacks: the newest stacks of stuck processes, by process id.
    """

    _since: dict[int, tuple[int, float]] = attrs.field(factory=dict)
    stacks: dict[int, str] = attrs.field(factory=dict)

    def rested(self, used: samples.Usage, now: float) -> None:
        """Note a sample that was taken before any of the processes was disturbed by a request for its stacks."""
        self._since = {pid: self._of(pid, switches, now) for pid, switches in used.loaders}
        self.stacks = {pid: text for pid, text in self.stacks.items() if pid in self._since}

    def disturbed(self, used: samples.Usage) -> None:
        """Note a sample that was taken after requests for stacks: the activity before it does not count."""
        for pid, switches in used.loaders:
            if pid in self._since:
                self._since[pid] = (switches, self._since[pid][1])

    def forget(self) -> None:
        """Begin anew: the rank does not wait for its loader."""
        self._since.clear()
        self.stacks.clear()

    def stuck(self, now: float) -> tuple[int, float] | None:
        """The process that has been stuck for the longest time, and since when; None: there is none."""
        found = [(since, pid) for pid, (_, since) in self._since.items() if now - since >= LOOK_S]
        return (min(found)[1], min(found)[0]) if found else None

    def _of(self, pid: int, switches: int, now: float) -> tuple[int, float]:
        known = self._since.get(pid)
        return known if known is not None and known[0] == switches else (switches, now)


def described(pid: int, wait: samples.Wait, stack: str) -> str:
    """What a stuck process does, as text.

    Args:
        pid: the process.
        wait: what its main thread waits for.
        stack: its innermost Python frame; empty: not known.
    """
    what = {"lock": "waits for a lock", "outside": "waits for a file, a socket or a process", "sleep": "sleeps"}
    at = f" in {stack}" if stack else ""
    return f"worker process {pid} of its data loader {what.get(wait.kind, 'does nothing')}{at}"
