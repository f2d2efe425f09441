"""``ftctl checkpoints``: the checkpoints in a storage, whether they can be loaded, and their conversion."""

import argparse
from typing import TYPE_CHECKING, Any

import attrs

from ftcore.checkpoint.directory import FoundCheckpoint, checkpoints
from ftcore.checkpoint.files import parse_directory
from ftcore.checkpoint.problems import CheckpointProblem, ProblemKind
from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.cli.ctl_convert import convert
from ftcore.cli.ctl_output import console, print_json, say, size_text, table
from ftcore.cli.ctl_state import current_state
from ftcore.cli.ctl_store import opened
from ftcore.errors import CheckpointError, NotFound, Unreachable, UsageError
from ftcore.states.model import JobState
from ftcore.states.resume import held_by, states_of
from ftcore.wording import NAMES_SHOWN, format_duration, listed, plural, printable

if TYPE_CHECKING:
    from rich.text import Text

DAMAGED = 1
"""Exit code if a checkpoint cannot be loaded."""


async def run(args: argparse.Namespace) -> int:
    """List, verify or convert checkpoints.

    Raises:
        UsageError: the job has no place for checkpoints, or ftcore does not know this kind of storage.
        NotFound: there is no such directory or checkpoint.
        Unreachable: the storage cannot be read.
        CheckpointError: a checkpoint cannot be converted.
    """
    if args.action == "convert":
        return await convert(args)
    _refuse_of_convert(args)
    if args.action == "list" and args.directory is not None:
        raise UsageError(f"PATH {args.directory}: only verify takes a PATH; expected: ftctl checkpoints --path URL")
    named = args.path or (args.directory if args.action == "verify" else None)
    state = None if named else await _job_state(args)
    try:
        if args.action == "verify":
            return _verify(args, _place(args, state))
        return _list(args, state)
    except CheckpointError as error:
        raise Unreachable(str(error)) from error


def _refuse_of_convert(args: argparse.Namespace) -> None:
    given = {"--step": args.step, "--model": args.model, "--file-size": args.file_size, "TARGET": args.target}
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} {value}: only ftctl checkpoints convert takes it")


async def _job_state(args: argparse.Namespace) -> JobState:
    async with opened(args) as log:
        return await current_state(log)


def _place(args: argparse.Namespace, state: JobState | None) -> str:
    """The place of the checkpoints: the one that was named, else that of the job.

    Raises:
        UsageError: the job has none.
    """
    if args.path or state is None:
        return str(args.path or "")
    if state.spec is None or not state.spec.checkpoints:
        raise UsageError(
            f"job {state.job or args.job} keeps checkpoints in memory only (ftrun without --checkpoints); name a "
            "directory or URL with --path"
        )
    return state.spec.checkpoints


def _list(args: argparse.Namespace, state: JobState | None) -> int:
    held = _in_memory(state) if state is not None else []
    if held and state is not None and state.spec is not None and not state.spec.checkpoints:
        return _print(args, None, [], held)
    storage = _storage(_place(args, state))
    found = checkpoints(storage)
    if not found and not held:
        _must_exist(storage)
    return _print(args, storage, found, held)


@attrs.frozen
class _MemoryCopy:
    """A step that nodes hold in memory.

    Args:
        step: the step.
        round: the round in which it was staged.
        nodes: the nodes that hold shards of it.
        missing: replica groups of which no shard is held.
    """

    step: int
    round: int
    nodes: tuple[str, ...]
    missing: int


def _in_memory(state: JobState) -> list[_MemoryCopy]:
    """What living nodes held when their workers last stopped, the newest step first."""
    alive = [(node.node, node.incarnation) for node in state.membership.alive()]
    found = []
    for each in states_of(held_by(state, alive)):
        missing = each.first.groups - len(each.savers)
        found.append(_MemoryCopy(each.step, each.round, tuple(each.nodes), missing))
    return sorted(found, key=lambda each: (each.round, each.step), reverse=True)


def _print(
    args: argparse.Namespace, storage: Storage | None, found: list[FoundCheckpoint], held: list[_MemoryCopy]
) -> int:
    if args.format == "json":
        stored = [_json(storage, each) for each in found] if storage is not None else []
        print_json([*map(_memory_json, held), *stored])
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
    for copy in held:
        rows.add_row(*_memory_row(copy))
    for each in found:
        rows.add_row(*_row(each))
    if found or held:
        console().print(rows)
    complete = sum(each.complete for each in found)
    texts = [f"{plural(len(held), 'step')} in memory when workers last stopped"] if held else []
    if storage is not None:
        texts.append(f"{plural(len(found), 'checkpoint')} in {printable(storage.url)}, {complete} complete")
    say("; ".join(texts))
    return 0


def _memory_row(copy: _MemoryCopy) -> "list[str | Text]":
    from rich.text import Text

    lacks = f"no shard of {plural(copy.missing, 'replica group')} is held" if copy.missing else "-"
    state = Text("incomplete", style="warn") if copy.missing else Text("in memory", style="good")
    names = listed(copy.nodes, NAMES_SHOWN, " ")
    return [str(copy.step), str(copy.round), "-", state, str(len(copy.nodes)), "-", "-", f"memory of {names}", lacks]


def _memory_json(copy: _MemoryCopy) -> dict[str, Any]:
    return {
        "path": None,
        "job": None,
        "step": copy.step,
        "round": copy.round,
        "complete": not copy.missing,
        "problem": None,
        "reason": f"no shard of {plural(copy.missing, 'replica group')} is held" if copy.missing else None,
        "bytes": None,
        "age_s": None,
        "shards": None,
        "nodes": list(copy.nodes),
    }


def _row(each: FoundCheckpoint) -> "list[str | Text]":
    from rich.text import Text

    style = {None: "good", ProblemKind.UNFINISHED: "warn"}.get(each.problem, "bad")
    return [
        str(each.step),
        str(each.round),
        printable(each.job) or "-",
        Text(each.problem or "complete", style=style),
        str(len(each.shards)),
        size_text(each.bytes),
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
        "nodes": None,
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


def _verify(args: argparse.Namespace, place: str) -> int:
    storage, directories = _chosen(args, place)
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


def _chosen(args: argparse.Namespace, place: str) -> tuple[Storage, list[str]]:
    """The storage and the directories to verify; unfinished checkpoints only if they are named."""
    path = args.directory or place
    above, separator, name = path.rstrip("/").rpartition("/")
    if parse_directory(name) is not None:
        below = args.path if args.directory and args.path else "."
        return _storage((above or separator) if separator else below), [name]
    storage = _storage(path)
    found = checkpoints(storage)
    if not found:
        _must_exist(storage)
        raise NotFound(f"no checkpoints in {storage.url}")
    for each in found:
        if each.problem == ProblemKind.UNFINISHED:
            say(f"{storage.where(each.directory)}: not verified: {each.why}")
    return storage, [each.directory for each in found if each.problem != ProblemKind.UNFINISHED]


def _storage(url: str) -> Storage:
    try:
        return Storage(url)
    except CheckpointError as error:
        raise UsageError(str(error)) from error


def _must_exist(storage: Storage) -> None:
    if not storage.exists(""):
        raise NotFound(f"no checkpoints in {storage.url}: it does not exist")
