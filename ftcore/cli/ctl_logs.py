"""``ftctl logs``: the log files of all ranks of an incident, the first failing rank first.

House rules: files are read on this host only. A file of another host is named with its host and path, and a node whose
directory the log does not know is named as such. A file's text is untrusted: secrets are replaced (``redaction.py``),
and control characters are shown as ``\\x1b``, in copies as well (``ctl_log_text.py``).
"""

import argparse
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from ftcore.cli.ctl_log_text import copied, last_lines, path_text
from ftcore.cli.ctl_output import clock, date, print_json, say, size_text
from ftcore.cli.ctl_reading import opened_reading
from ftcore.errors import NotFound, UsageError
from ftcore.events.envelope import Event
from ftcore.events.imported import SourceCited
from ftcore.ids import SECOND
from ftcore.redaction import HIDDEN, redacted
from ftcore.replay.explain import Explainer, Incident
from ftcore.replay.failures import failure_line
from ftcore.replay.outputs import OutputPlaces, WorkerOutput
from ftcore.wording import format_elapsed, listed, plural, printable

FILES_MAX = 20
"""Files of one rank's directory that are read."""

RANKS_SHOWN = 16
"""Ranks whose files are printed; with ``--all`` or ``-o`` all are."""

CITED_SHOWN = 10
"""Places of an import that a message names."""

INDEX = "index.json"
"""The list of files in the directory of ``-o``."""


class _CitedPlaces:
    """A reader that collects the lines of files from which the facts of an import were read."""

    def __init__(self) -> None:
        self._places: list[tuple[int, str]] = []

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if type(event.data) is SourceCited and event.data.place:
            self._places.append((event.seq, event.data.place))

    def of(self, incident: Incident) -> str:
        """The places of the facts of an incident, or of the last fact before it."""
        before = [place for seq, place in self._places if seq < incident.first_seq][-1:]
        within = [place for seq, place in self._places if incident.first_seq <= seq <= incident.last_seq]
        return listed(list(dict.fromkeys([*before, *within])), CITED_SHOWN) or "files that it does not name"


@attrs.frozen(kw_only=True)
class RankFile:
    """One log file, or the reason why a rank has none here.

    Args:
        output: the worker.
        path: the file, or the directory if it cannot be read; empty: not known.
        state: ``here``, ``elsewhere`` (on another host), ``missing`` (on this host, but there is no file),
            ``unreadable`` or ``unknown`` (the log does not say where it is).
        size: bytes.
        written: when it was last written, nanoseconds since the epoch, by its file system's clock; 0: not known.
    """

    output: WorkerOutput
    path: str
    state: str
    size: int = 0
    written: int = 0


async def logs(args: argparse.Namespace) -> int:
    """Print the ends of the files, or copy the files."""
    explainer = Explainer()
    places = OutputPlaces(explainer.state)
    cited = _CitedPlaces()
    async with opened_reading(args) as reading:
        await reading.feed(explainer, places, cited)
    incident = _chosen(explainer.incidents(), args.incident)
    found = [file for output in places.of(incident) for file in _files(output)]
    here = [file for file in found if file.state == "here"]
    copies: dict[str, str] = {}
    if here and args.output is not None:
        copies = _copy(here, Path(args.output))
    described = _json(incident, str(reading.log.job), places.rounds(incident.id), found, copies)
    if copies:
        _write_index(Path(args.output), described)
    if args.format == "json":
        print_json(described)
    elif not copies:
        _print(incident, here if args.all else _first_ranks(here), args.lines)
    if not here and explainer.state.imported:
        raise NotFound(f"{incident.id} was imported; its evidence was read from {cited.of(incident)}")
    _say_rest(found, here, args, copies)
    if not here:
        raise NotFound(f"no log file of {incident.id} can be read on this host ({socket.gethostname()})")
    return reading.exit_code


def _chosen(incidents: Sequence[Incident], name: str | None) -> Incident:
    if not incidents:
        raise NotFound("the log has no incident")
    if name is None:
        return next((each for each in reversed(incidents) if each.failures), incidents[-1])
    for incident in reversed(incidents):
        if incident.id == name:
            return incident
    raise NotFound(f"no incident {name!r}; there are {incidents[0].id} to {incidents[-1].id}")


# -- finding files


def _files(output: WorkerOutput) -> Iterator[RankFile]:
    """The files of a rank on this host, those with standard error first."""
    if not output.directory:
        yield RankFile(output=output, path="", state="unknown")
        return
    try:
        paths = sorted(Path(output.directory).iterdir(), key=_stderr_first)
    except FileNotFoundError:
        local = output.host in ("", socket.gethostname())
        yield RankFile(output=output, path=output.directory, state="missing" if local else "elsewhere")
        return
    except (OSError, ValueError):  # the log may name a path with a NUL
        yield RankFile(output=output, path=output.directory, state="unreadable")
        return
    some = False
    for path in paths[:FILES_MAX]:
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or not status.st_size:
                continue
            readable = os.access(path, os.R_OK)
        except OSError:
            continue
        some = True
        state = "here" if readable else "unreadable"
        yield RankFile(output=output, path=str(path), state=state, size=status.st_size, written=status.st_mtime_ns)
    if not some:
        yield RankFile(output=output, path=output.directory, state="missing")


def _stderr_first(path: Path) -> tuple[bool, bool, str]:
    return "stderr" not in path.name, "stdout" not in path.name, path.name


def _first_ranks(files: Sequence[RankFile]) -> list[RankFile]:
    ranks = list(dict.fromkeys((file.output.round, file.output.rank) for file in files))[:RANKS_SHOWN]
    return [file for file in files if (file.output.round, file.output.rank) in ranks]


# -- showing them


def _print(incident: Incident, files: Sequence[RankFile], lines: int) -> None:
    print(printable(redacted(failure_line(incident))))
    failed_at = _failed_at(incident)
    for file in files:
        print()
        print(printable(_heading(file, failed_at)))
        try:
            with open(file.path, "rb") as stream:
                for line in last_lines(stream, file.size, lines):
                    print(line)
        except OSError as error:
            say(f"{path_text(file.path)}: {error.strerror}")


def _failed_at(incident: Incident) -> int:
    return incident.failures[0].time if incident.failures else incident.opened


def _heading(file: RankFile, failed_at: int) -> str:
    output = file.output
    local = f" (local {output.local_rank})" if output.local_rank is not None else ""
    failed = "" if output.order is None else ", failed first" if output.order == 0 else ", failed later"
    apart = (file.written - failed_at) / SECOND
    when = f"written {format_elapsed(abs(apart))} {'after' if apart >= 0 else 'before'} the failure"
    name = f"rank {output.rank}{local} on {output.node}{failed}, round {output.round}"
    return f"==> {name}: {path_text(file.path)} ({size_text(file.size)}, {when})"


def _say_rest(
    found: Sequence[RankFile], here: Sequence[RankFile], args: argparse.Namespace, copies: dict[str, str]
) -> None:
    """Name on stderr what was not shown, and why."""
    shown = here if args.all or copies or args.format == "json" else _first_ranks(here)
    if len(shown) < len(here):
        ranks = len({(file.output.round, file.output.rank) for file in here})
        say(f"the files of {RANKS_SHOWN} of {ranks} ranks are shown; all of them: --all, or copy them: -o DIR")
    if copies:
        say(f"wrote {plural(len(copies), 'file')} and {INDEX} to {args.output}")
    reasons = {
        "missing": "no file on this host",
        "unreadable": "cannot be read",
        "elsewhere": "on another host",
        "unknown": "the log does not say where its output is",
    }
    for state, reason in reasons.items():
        several = [file for file in found if file.state == state]
        for file in several[:RANKS_SHOWN]:
            where = f": {file.output.host or 'this host'}:{file.path}" if file.path else ""
            say(printable(f"rank {file.output.rank} on {file.output.node}: {reason}{where}"))
        if len(several) > RANKS_SHOWN:
            say(f"{len(several) - RANKS_SHOWN} more: {reason}; all of them: --format json")


# -- copies and JSON


def _copy(files: Sequence[RankFile], directory: Path) -> dict[str, str]:
    """Copy files into an empty or new directory; returns the copies' names by path.

    Raises:
        UsageError: the directory is not empty, or cannot be written.
    """
    copies = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"{directory} is not empty: name a new directory")
        for place, file in enumerate(files):
            output = file.output
            name = _safe(f"{place:04d}-round{output.round}-rank{output.rank}-{output.node}-{Path(file.path).name}")
            try:
                source = open(file.path, "rb")  # noqa: SIM115 -- closed by the next statement
            except OSError as error:
                say(f"{path_text(file.path)}: {error.strerror}")
                continue
            with source, _created(directory / name) as target:
                target.writelines(part.encode() for part in copied(source))
            copies[file.path] = name
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror}") from error
    return copies


def _safe(name: str) -> str:
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in name)


def _created(path: Path) -> BinaryIO:
    """A new file for this user alone, as exports are: a secret of an unknown kind may be in it."""
    return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb")


def _write_index(directory: Path, described: dict[str, Any]) -> None:
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(described), indent=2)
    with _created(directory / INDEX) as file:
        file.write(text + b"\n")


def _json(
    incident: Incident, job: str, rounds: Sequence[int], found: Sequence[RankFile], copies: dict[str, str]
) -> dict[str, Any]:
    failed_at = _failed_at(incident)
    return {
        "job": job,
        "incident": incident.id,
        "what": redacted(failure_line(incident)),
        "failed_at": f"{date(failed_at)}T{clock(failed_at)}Z",
        "failed_at_ns": failed_at,
        "rounds": list(rounds),
        "redacted_as": HIDDEN,
        "files": [
            {
                **{name: value for name, value in attrs.asdict(file.output).items() if name != "directory"},
                "path": path_text(file.path) or None,
                "state": file.state,
                "size": file.size,
                "written_ns": file.written or None,
                "copy": copies.get(file.path),
            }
            for file in found
        ],
    }
