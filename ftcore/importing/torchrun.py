"""The folder of ``torchrun --log-dir``, and torchrun's own output.

    RUN_ID_XXXXXXXX/attempt_N/LOCAL_RANK/{stdout.log,stderr.log,error.json}

The layout is that of ``torch.distributed.elastic.multiprocessing.DefaultLogsSpecs``; the error file is that of
``@record``. Every agent makes a run folder of its own, so one run folder is one host. Pure.
"""

import re

import attrs
import msgspec

from ftcore.ids import SECOND
from ftcore.importing.model import Act, Collected, Sighting, SourceTime

_PATH = re.compile(r"^(?:(.*)/)?([^/]{1,200})/attempt_(\d{1,6})/(\d{1,5})/([^/]{1,100})$")
ERROR_FILE = "error.json"
TEXT_MAX = 4096


@attrs.frozen(kw_only=True)
class WorkerPath:
    """The place of a worker's file in the layout.

    Args:
        group: the folder of the host's run, as a key.
        attempt: number of the attempt, from 0.
        local_rank: rank on the host.
        name: name of the file.
    """

    group: str
    attempt: int
    local_rank: int
    name: str


def worker_path(name: str) -> WorkerPath | None:
    """The place of a file in torchrun's layout; None: it is elsewhere."""
    found = _PATH.match(name.replace("\\", "/"))
    if found is None:
        return None
    group = f"{found[1]}/{found[2]}" if found[1] else found[2]
    return WorkerPath(group=group, attempt=int(found[3]), local_rank=int(found[4]), name=found[5])


def host_names(groups: list[str]) -> dict[str, str]:
    """Name the hosts of several run folders: by the part of their paths in which they differ, else ``node0``, ...

    Args:
        groups: keys of ``WorkerPath``.
    """
    if len(groups) < 2:
        return dict.fromkeys(groups, "")
    parts = [group.split("/") for group in groups]
    for level in range(min(map(len, parts)) - 1):
        names = [each[level] for each in parts]
        if len(set(names)) == len(names):
            return dict(zip(groups, names, strict=True))
    return {group: f"node{number}" for number, group in enumerate(sorted(groups))}


def read_error(data: bytes, name: str, where: WorkerPath, host: str) -> Sighting | None:
    """The failure in an error file; None: it is not one, for example because it was cut off.

    Args:
        data: contents of the file.
        name: its name.
        where: its place in the layout.
        host: its host.
    """
    found = failure_of(data)
    if found is None:
        return None
    text, callstack, when = found
    return Sighting(
        act=Act.FAILED,
        place=name,
        when=when,
        host=host,
        attempt=where.attempt,
        local_rank=where.local_rank,
        text=text,
        callstack=callstack,
    )


def failure_of(data: bytes) -> tuple[str, str, SourceTime] | None:
    """Message, traceback and time of a document of torchrun's error files; None: it is none.

    Args:
        data: the document as JSON.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    message = document.get("message") if isinstance(document, dict) else None
    inner = message.get("message") if isinstance(message, dict) else message
    if not isinstance(inner, str):
        return None
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    extra = extra if isinstance(extra, dict) else {}
    stamp, stack = extra.get("timestamp"), extra.get("py_callstack")
    try:
        seconds = int(stamp) if isinstance(stamp, str | int) else None
    except ValueError:
        seconds = None
    when = SourceTime()
    if seconds is not None and 0 < seconds < 1 << 33:
        when = SourceTime(ns=seconds * SECOND, error_s=1.0, basis="field")
    return inner[:TEXT_MAX], stack[-TEXT_MAX:] if isinstance(stack, str) else "", when


def zone_offset(collected: Collected) -> dict[str, float]:
    """By host: seconds between its local time and UTC, from failures that have a local and an absolute time.

    torchrun's summary prints the time stamp of the error file in local time.
    """
    absolute: dict[tuple[str, int | None, str], int] = {}
    for one in collected.sightings:
        if one.act is Act.FAILED and one.when.basis == "field" and not one.when.local and one.when.ns is not None:
            absolute[one.host, one.local_rank, one.text[:200]] = one.when.ns
    offsets: dict[str, float] = {}
    for one in collected.sightings:
        if one.act is not Act.FAILED or not one.when.local or one.when.ns is None or not one.text:
            continue
        for host in (one.host, ""):
            known = absolute.get((host, one.local_rank, one.text[:200]))
            if known is not None:
                offset = (one.when.ns - known) / SECOND
                if abs(offset - 900 * round(offset / 900)) <= 2 and abs(offset) <= 15 * 3600:
                    offsets.setdefault(one.host, 900.0 * round(offset / 900))
    return offsets
