"""Logs for tests: modified copies of real logs."""

from collections.abc import Callable
from pathlib import Path

from ftcore.events.envelope import Event
from ftcore.ids import JobName
from ftcore.logs.archive import ArchiveWriter, read_events, read_header


def rewrite_archive(src: Path, dst: Path, change: Callable[[Event], Event]) -> int:
    """Copy an archive, applying ``change`` to every event and recomputing digests. Returns the number of events.

    Args:
        src: the archive to read.
        dst: the archive to write.
        change: returns the modified event, with the same ``seq``.

    Raises:
        LogCorrupt: ``src`` is damaged.
        UsageError: ``dst`` cannot be written.
    """
    with ArchiveWriter(dst, JobName(read_header(src).job)) as writer:
        for event in read_events(src):
            writer.add(change(event))
    return writer.events
