"""Rules common to all log adapters: job names and the size of an append."""

import re
from collections.abc import AsyncIterator, Sequence

from ftcore.errors import StoreError, Truncated, UsageError
from ftcore.events.codec import encode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq
from ftcore.ports import GROUP_BYTES_MAX, Floor

JOB_NAME_MAX = 100
"""Most characters in a job name: with the longest suffix it fits a file name and a Kubernetes annotation."""

_JOB_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{JOB_NAME_MAX - 1}}}")


def check_job_name(name: str) -> JobName:
    """Validate a job name.

    Raises:
        UsageError: the name is invalid.
    """
    if _JOB_NAME.fullmatch(name):
        return JobName(name)
    raise UsageError(
        f"{name[: 2 * JOB_NAME_MAX]!r} is not a valid job name: use 1 to {JOB_NAME_MAX} of the characters A-Z, a-z, "
        "0-9, '.', '_' and '-', not starting with '.' or '-'"
    )


def encode_group(events: Sequence[Event], expected_seq: Seq) -> list[bytes]:
    """The bodies of events to append after ``expected_seq``.

    Raises:
        ValueError: there are no events, their numbering does not continue ``expected_seq``, or they exceed
            ``GROUP_BYTES_MAX`` bytes.
    """
    if not events:
        raise ValueError("an append needs at least one event")
    for seq, event in enumerate(events, expected_seq + 1):
        if event.seq != seq:
            raise ValueError(f"expected event {seq}, got {event.seq}: number events without a gap")
    bodies = [encode(event) for event in events]
    size = sum(map(len, bodies))
    if size > GROUP_BYTES_MAX:
        raise ValueError(f"{len(events)} events have {size} bytes: one append takes at most {GROUP_BYTES_MAX} bytes")
    return bodies


async def one_by_one(batches: AsyncIterator[list[Event]]) -> AsyncIterator[Event]:
    """The events of batches: ``ports.EventLog.read`` of ``read_batches``."""
    async for events in batches:
        for event in events:
            yield event


def truncated(job: JobName, after: int, floor: Floor) -> Truncated:
    """The error for a read of truncated events."""
    where = f"they are archived in {floor.archive}" if floor.archive else "the log does not say where they are archived"
    return Truncated(f"job {job}: events {after + 1} to {floor.seq} were removed from the live log; {where}", floor.seq)


def continued(job: JobName, seen: Seq, last: Seq) -> Seq:
    """The newest end of the log that a follower has seen.

    Raises:
        StoreError: the log ends before the end that was seen.
    """
    if last < seen:
        raise StoreError(
            f"job {job}: the log ends with event {last}, event {seen} was read before: the log was deleted or restored "
            "from an older copy"
        )
    return last
