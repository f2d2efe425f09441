"""``ftctl checkpoints``: the checkpoints in a storage, and whether they can be loaded."""

import argparse
from typing import TYPE_CHECKING, Any

from ftcore.checkpoint.directory import FoundCheckpoint, checkpoints
from ftcore.checkpoint.files import parse_directory
from ftcore.checkpoint.problems import CheckpointProblem, ProblemKind
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.cli.ctl_output import console, print_json, say, table
from ftcore.errors import CheckpointError, NotFound, Unreachable, UsageError
from ftcore.wording import format_duration, plural, printable

if TYPE_CHECKING:
    from rich.text import Text

DAMAGED = 1
"""Exit code if a checkpoint cannot be loaded."""

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


async def run(args: argparse.Namespace) -> int:
    """List or verify checkpoints.

    Raises:
        UsageError: no path is given, or ftcore does not know this kind of storage.
        NotFound: there is no such directory or checkpoint.
        Unreachable: the storage cannot be read.
    """
    if args.action == "list" and args.directory is not None:
        raise UsageError(f"PATH {args.directory}: only verify takes a PATH; expected: ftctl checkpoints --path URL")
    try:
        if args.action == "verify":
            return _verify(args)
        return _list(args)
    except CheckpointError as error:
        raise Unreachable(str(error)) from error


def _list(args: argparse.Namespace) -> int:
    storage = _opened(_path(args))
    found = checkpoints(storage)
    if not found:
        _must_exist(storage)
    if args.format == "json":
        print_json([_json(storage, each) for each in found])
        return 0
    rows = table(
        "STEP",
        "ROUND",
        "JOB",
        "STATE",
        "SHARDS",
        "SIZE",
        "AGE",
        "DIRECTORY",
        "REASON",
        right=("STEP", "ROUND", "SHARDS", "SIZE", "AGE"),
        flexible=("REASON",),
        spare=("ROUND", "JOB", "SHARDS"),
    )
    for each in found:
        rows.add_row(*_row(each))
    if found:
        console().print(rows)
    complete = sum(each.complete for each in found)
    say(f"{plural(len(found), 'checkpoint')} in {printable(storage.url)}, {complete} complete")
    return 0


def _row(each: FoundCheckpoint) -> "list[str | Text]":
    from rich.text import Text

    style = {None: "good", ProblemKind.UNFINISHED: "warn"}.get(each.problem, "bad")
    return [
        str(each.step),
        str(each.round),
        printable(each.job) or "-",
        Text(each.problem or "complete", style=style),
        str(len(each.shards)),
        _size(each.bytes),
        "-" if each.age_s is None else format_duration(int(each.age_s)),
        each.directory,
        printable(each.why) or "-",
    ]


def _json(storage: Storage, each: FoundCheckpoint) -> dict[str, Any]:
    return {
        "path": storage.where(each.directory),
        "job": each.job or None,
        "step": each.step,
        "round": each.round,
        "complete": each.complete,
        "problem": each.problem,
        "reason": each.why or None,
        "bytes": each.bytes,
        "age_s": each.age_s,
        "shards": [
            {
                "file": storage.where(f"{each.directory}/{shard.name}"),
                "rank": shard.rank,
                "group": shard.group,
                "bytes": shard.bytes,
            }
            for shard in each.shards
        ],
    }


def _verify(args: argparse.Namespace) -> int:
    storage, directories = _chosen(args)
    results = [(directory, verify(storage, directory)) for directory in directories]
    if args.format == "json":
        print_json([_result(storage, directory, problems) for directory, problems in results])
    else:
        for directory, problems in results:
            for problem in problems:
                print(printable(str(problem)))
            if not problems:
                print(f"{printable(storage.where(directory))}: complete, and every checksum matches")
    damaged = [directory for directory, problems in results if problems]
    say(f"{plural(len(results), 'checkpoint')} verified, {len(damaged)} cannot be loaded")
    return DAMAGED if damaged else 0


def _result(storage: Storage, directory: str, problems: list[CheckpointProblem]) -> dict[str, Any]:
    step, round_ = parse_directory(directory) or (None, None)
    return {
        "path": storage.where(directory),
        "step": step,
        "round": round_,
        "complete": not problems,
        "defects": [
            {"problem": each.kind, "file": storage.where(each.file), "reason": each.message} for each in problems
        ],
    }


def _chosen(args: argparse.Namespace) -> tuple[Storage, list[str]]:
    """The storage and the directories to verify; unfinished checkpoints only if they are named."""
    path = args.directory or _path(args)
    above, separator, name = path.rstrip("/").rpartition("/")
    if parse_directory(name) is not None:
        below = args.path if args.directory and args.path else "."
        return _opened((above or separator) if separator else below), [name]
    storage = _opened(path)
    found = checkpoints(storage)
    if not found:
        _must_exist(storage)
        raise NotFound(f"no checkpoints in {storage.url}")
    for each in found:
        if each.problem == ProblemKind.UNFINISHED:
            say(f"{storage.where(each.directory)}: not verified: {each.why}")
    return storage, [each.directory for each in found if each.problem != ProblemKind.UNFINISHED]


def _path(args: argparse.Namespace) -> str:
    if not args.path:
        raise UsageError("no checkpoint path; give it as --path, for example --path /data/checkpoints")
    return str(args.path)


def _opened(url: str) -> Storage:
    try:
        return Storage(url)
    except CheckpointError as error:
        raise UsageError(str(error)) from error


def _must_exist(storage: Storage) -> None:
    if not storage.exists(""):
        raise NotFound(f"no checkpoints in {storage.url}: it does not exist")


def _size(count: int) -> str:
    """A size, as ``812 B`` or ``3.5 GiB``."""
    if count < 1024:
        return f"{count} B"
    power = 1
    while power < len(_UNITS) and count >= 1023.95 * 1024**power:
        power += 1
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"
