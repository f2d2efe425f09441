"""Who wrote a line: launchers, schedulers and libraries put the rank, the task or the host in front of it.

Also whom a line *names*: a victim often says who was missing. House rule: names are looked for in a bounded part of the
line, with patterns that cannot backtrack far.
"""

import re

HEAD_CHARS = 160
"""Where the writer of a line is named, if at all."""

_SPEAKERS = tuple(
    (gate, re.compile(pattern))
    for gate, pattern in (
        ("srun: error: ", r"^srun: error: \S{1,80}: tasks? (\d{1,6})"),
        ("ank", r"\[[Rr]ank ?:? ?(\d{1,6})\]"),
        ("Rank ", r"\bRank (\d{1,6})\]"),
        ("]:", r"^\[\d{1,4},(\d{1,6})\](?:<\w{1,8}>)?:"),
        ("]<", r"^\[\d{1,4},(\d{1,6})\](?:<\w{1,8}>)?:"),
        ("]:", r"[|\s]\[\d{1,4},(\d{1,6})\](?:<\w{1,8}>)?:"),
        (": ", r"^\s{0,4}(\d{1,6}): "),
        ("[default", r"\[default(\d{1,4})\]"),
        ("TP", r"\b(TP\d{1,4})\]"),
        ("rank", r"\brank[= ](\d{1,6})\b"),
        ('": {', r"^\s{0,6}\"(\d{1,6})\": \{"),
        ("] ", r"^([\w.-]{1,80}):\d{1,9}:\d{1,9} \[\d{1,3}\] "),
        (" | ", r"^\s{0,4}([\w.-]{1,80}) \| "),
        (" pid=", r"^\(\w{1,40} pid=(\d{1,9})"),
    )
)
"""Each with the letters without which its pattern need not be tried."""

_SECTION = re.compile(r"^\s{0,8}rank\s{0,8}: (\d{1,6})\b")
"""A part of torchrun's summary about one rank begins."""

_NAMED = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[(\d{1,6})\] finished collective #\d{1,12}, but didn't join",
        r"[Rr]anks? ([\d, ]{1,80}) failed to pass monitoredBarrier",
        r"waiting for send/recv from rank (\d{1,6})",
        r"signal (?:due to a collective timeout )?from (?:remote )?rank (\d{1,6})",
        r"closed by remote peer ([\w.-]{1,80})<",
        r"straggler\S{0,3} are: \[([\d, ]{1,60})\]",
        r"CheckpointException ranks:dict_keys\(\[(\d{1,6})",
        r"Child process with PID \d{1,9} terminated .{0,20}rank (\d{1,6})",
    )
)


def speaker(line: str) -> str:
    """The rank, task or host that wrote the line; empty if it does not say."""
    head = line[:HEAD_CHARS]
    for gate, pattern in _SPEAKERS:
        if gate in head:
            found = pattern.search(head)
            if found is not None:
                return found[1]
    return ""


def section(line: str) -> str:
    """The rank that the following lines of a launcher's summary are about; empty if none begins."""
    found = _SECTION.match(line[:HEAD_CHARS]) if "rank " in line[:20] else None
    return found[1] if found is not None else ""


def named(line: str) -> str:
    """Whom the line blames; empty if nobody."""
    for pattern in _NAMED:
        found = pattern.search(line[:4096])
        if found is not None:
            return found[1].strip(" ,")
    return ""
