"""The collectives that a process has begun, as its worker tells its agent: one line of JSON.

torch numbers the collectives of each process group, alike on all of its ranks. So of two ranks that wait for each other
the one with the lower number is behind.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

MEMFD: Final = "ftcore-calls"
"""Name of the memfd with the answer."""

CALLS_MAX: Final = 16
"""Process groups in an answer, those of the newest calls."""


@attrs.frozen
class Call:
    """The newest collective that a rank has begun in a process group.

    Args:
        group: name of the process group.
        number: number of the collective within the group.
        op: its operation, as ``all_reduce``.
    """

    group: str
    number: int
    op: str


def calls_of(entries: Iterable[Mapping[str, Any]]) -> tuple[Call, ...]:
    """Return the newest collective of each process group, the newest first.

    Args:
        entries: of torch's flight recorder, oldest first; sends and receives are left out.
    """
    newest: dict[str, Call] = {}
    for entry in entries:
        if entry.get("is_p2p"):
            continue
        group = str((entry.get("process_group") or [""])[0])
        op = str(entry.get("profiling_name", "")).rpartition(":")[2]
        newest.pop(group, None)
        newest[group] = Call(group, int(entry.get("collective_seq_id", 0)), op)
    return tuple(reversed(newest.values()))[:CALLS_MAX]


def encoded(calls: Iterable[Call]) -> bytes:
    """The first line of an answer."""
    return json.dumps([attrs.astuple(call) for call in calls]).encode() + b"\n"


def decoded(answer: bytes) -> tuple[Call, ...]:
    """Read an answer; empty if it is torn or not one."""
    try:
        return tuple(Call(str(group), int(number), str(op)) for group, number, op in json.loads(answer.split(b"\n")[0]))
    except (ValueError, TypeError):
        return ()
