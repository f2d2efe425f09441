"""The rank, task or host that wrote a line, and the one that the line names.

Launchers, schedulers and libraries put the rank, the task or the host before a line. A victim's message often names the
missing rank. House rule: only a bounded part of the line is searched, with patterns that cannot backtrack far.
"""

import re

HEAD_CHARS = 160
"""Characters at the start of a line that may name its writer."""

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
"""Each with a literal that is searched for first, because it is cheaper than the pattern."""

_SECTION = re.compile(r"^\s{0,8}rank\s{0,8}: (\d{1,6})\b")
"""First line of a section of torchrun's summary about one rank."""

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
    """Return the rank, task or host that wrote the line; empty: not known."""
    head = line[:HEAD_CHARS]
    for gate, pattern in _SPEAKERS:
        if gate in head:
            found = pattern.search(head)
            if found is not None:
                return found[1]
    return ""


def section(line: str) -> str:
    """Return the rank of the section of a launcher's summary that begins here; empty: none."""
    found = _SECTION.match(line[:HEAD_CHARS]) if "rank " in line[:20] else None
    return found[1] if found is not None else ""


def blamed(line: str) -> str:
    """Return the rank or host that the line blames; empty: none."""
    for pattern in _NAMED:
        found = pattern.search(line[:4096])
        if found is not None:
            return found[1].strip(" ,")
    return ""
