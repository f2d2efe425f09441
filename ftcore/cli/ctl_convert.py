"""``ftctl checkpoints convert``: a model out of a checkpoint, and checkpoints of torch into ours.

House rules: torch is loaded when something is converted, and not before: ``ftctl`` works without it.
"""

import argparse
import importlib
import importlib.util
import time
from pathlib import Path
from typing import Any, Final

from ftcore.checkpoint.directory import checkpoints, newest
from ftcore.checkpoint.files import parse_directory
from ftcore.checkpoint.storage import Storage
from ftcore.cli.ctl_output import print_json, say, size_text
from ftcore.errors import CheckpointError, NotFound, UsageError
from ftcore.ids import JobName
from ftcore.wording import listed, plural, printable

PROGRESS_S: Final = 2.0
"""Seconds between two messages about the progress."""

TIED_SHOWN: Final = 3
_GB: Final = 1e9
_USAGE: Final = "expected: ftctl checkpoints convert SOURCE TARGET"


async def convert(args: argparse.Namespace) -> int:
    """Export the model of a checkpoint, or import a checkpoint of torch: the source says which.

    Raises:
        UsageError: the arguments do not fit together, or torch is not installed.
        CheckpointError: it cannot be converted.
    """
    if args.directory is None or args.target is None:
        raise UsageError(
            f"checkpoints convert: {'SOURCE' if args.directory is None else 'TARGET'} is missing; {_USAGE}"
        )
    if args.path is not None:
        raise UsageError(f"--path: only list and verify take it; {_USAGE}")
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "checkpoints convert needs torch, which this Python does not have; install it: pip install torch"
        )
    ours = _checkpoint_in(args.directory, args.job or "")
    given = {"--step": args.step, "--model": args.model, "--file-size": args.file_size}
    if ours:
        _refuse({"--step": given["--step"]}, f"{args.directory} is a checkpoint of ftcore: its model is exported")
        return _export(args, ours)
    del given["--step"]
    _refuse(given, f"{args.directory} has no checkpoint of ftcore: it is imported, as one of torch")
    return _import(args)


def _refuse(given: dict[str, Any], why: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} has no effect here: {why}")


def _checkpoint_in(source: str, job: str) -> str:
    """The directory of a checkpoint of ftcore: the source, or the newest complete one in it; empty: it is of torch.

    Raises:
        NotFound: there are checkpoints of ftcore, but no complete one of the job; or it is a URL without one.
    """
    source = source.rstrip("/") or "/"
    if parse_directory(source.rpartition("/")[2]) is not None:
        return source
    if Path(source).is_file():
        return ""
    try:
        storage = Storage(source)
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    found = newest(storage, JobName(job) if job else None)
    if found is not None:
        return storage.where(found.directory)
    if "://" in source or checkpoints(storage):
        of_job = f" of job {job}" if job else ""
        raise NotFound(f"no complete checkpoint{of_job} in {source}; one of torch is imported from a local path")
    return ""


class _ShownProgress:
    """Says on stderr how much is done, every ``PROGRESS_S`` seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_S

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next and done < total:
            self._next = now + PROGRESS_S
            say(f"{size_text(done)} of {size_text(total)}")


def _export(args: argparse.Namespace, source: str) -> int:
    if "://" in args.target:
        raise UsageError(f"TARGET {args.target}: a model is exported to a local directory")
    module = importlib.import_module("ftcore.worker.state.export")
    options = {} if args.file_size is None else {"file_bytes": int(args.file_size * _GB)}
    made = module.export_model(source, args.target, args.model or "model", progress=_ShownProgress(), **options)
    if args.format == "json":
        print_json({"kind": "model", "source": source, "path": args.target, **made._asdict()})
        return 0
    files = plural(len(made.files), "file")
    where = printable(args.target)
    print(f"{where}: {plural(made.tensors, 'tensor')} of step {made.step}, {size_text(made.bytes)} in {files}")
    if made.tied:
        pairs = [f"{alias} = {stored}" for alias, stored in made.tied.items()]
        print(f"tied tensors are written once: {printable(listed(pairs, TIED_SHOWN))}")
    if not made.config:
        say("no config.json: nothing is registered as `config`; transformers needs that of the model beside the files")
    return 0


def _import(args: argparse.Namespace) -> int:
    module = importlib.import_module("ftcore.worker.state.convert")
    job = args.job or ""
    made = module.import_checkpoint(args.directory, args.target, step=args.step, job=job, progress=_ShownProgress())
    path = Storage(args.target).where(made.directory)
    if args.format == "json":
        about = {**made._asdict(), "job": job or None}
        del about["directory"]
        print_json({"kind": "checkpoint", "source": args.directory, "path": path, **about})
        return 0
    print(f"{printable(path)}: {plural(made.tensors, 'tensor')}, {size_text(made.bytes)}")
    names = printable(", ".join(made.objects))
    who = f"job {job}" if job else "a job"
    print(
        f"{who} that registers {names or 'nothing'} goes on after step {made.step}: ftrun --checkpoints {args.target}"
    )
    return 0
