"""Rules that every log adapter holds to: what a job may be called, and what one append may hold."""

import re
from collections.abc import Sequence

from ftcore.errors import Truncated, UsageError
from ftcore.events.codec import encode
from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq
from ftcore.ports import GROUP_BYTES_MAX, Floor

JOB_NAME_MAX = 100
"""Characters in a job's name: with the longest suffix it still fits a file name, and a Kubernetes annotation."""

_JOB_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{JOB_NAME_MAX - 1}}}")


def check_job_name(name: str) -> JobName:
    """The name as a job's name.

    Raises:
        UsageError: it is not one.
    """
    if _JOB_NAME.fullmatch(name):
        return JobName(name)
    raise UsageError(
        f"{name[: 2 * JOB_NAME_MAX]!r} cannot name a job: use 1 to {JOB_NAME_MAX} of the letters A-Z and a-z, digits, "
        "'.', '_' and '-', not starting with '.' or '-'"
    )


def encode_group(events: Sequence[Event], expected_seq: Seq) -> list[bytes]:
    """The bodies of events that are to be appended behind ``expected_seq``.

    Raises:
        ValueError: there are none, they are not numbered on from ``expected_seq``, or they are over
            ``GROUP_BYTES_MAX`` bytes together.
    """
    if not events:
        raise ValueError("an append needs at least one event")
    for seq, event in enumerate(events, expected_seq + 1):
        if event.seq != seq:
            raise ValueError(f"event {event.seq} stands where {seq} was expected: number them without a gap")
    bodies = [encode(event) for event in events]
    size = sum(map(len, bodies))
    if size > GROUP_BYTES_MAX:
        raise ValueError(f"{len(events)} events of {size} bytes: one append holds at most {GROUP_BYTES_MAX} bytes")
    return bodies


def truncated(job: JobName, after: int, floor: Floor) -> Truncated:
    """The error of a reader that wants events which are not in the live log any more."""
    where = f"they were archived in {floor.archive}" if floor.archive else "where they were archived is not known"
    return Truncated(
        f"job {job}: the live log begins with event {floor.seq + 1}, event {after + 1} is not in it any more; {where}",
        floor.seq,
        floor.archive,
    )
