"""Opening the log that a command reads."""

import argparse
import contextlib
import difflib
from collections.abc import AsyncIterator
from pathlib import Path

from ftcore.errors import NotFound, UsageError
from ftcore.ids import JobName
from ftcore.logs import check_job_name, default_store_url, open_store
from ftcore.logs.archived import JoinedLog
from ftcore.logs.stores import missing_path
from ftcore.ports import EventLog, LogStore
from ftcore.wording import listed

NAMED_MAX = 10
"""Jobs that a message lists."""


@contextlib.asynccontextmanager
async def opened(args: argparse.Namespace) -> AsyncIterator[EventLog]:
    """Open the log that ``--store`` and ``--job`` name, and close it at exit; sets ``args.job`` for messages.

    Raises:
        NotFound: there is no such job, or the store has no job.
        UsageError: the store has several jobs, and ``--job`` is missing.
    """
    store = open_store(args.store)
    try:
        args.job = await _choose(store, args)
        log = joined(await store.open(args.job), args)
        try:
            yield log
        finally:
            await log.close()
    finally:
        await store.close()


def joined(log: EventLog, args: argparse.Namespace) -> EventLog:
    """The log, joined with its archive."""
    return JoinedLog(log, Path(args.archive) if args.archive else None)


async def job_names(url: str | None) -> list[JobName]:
    """The jobs in a store, sorted."""
    store = open_store(url)
    try:
        return await store.jobs()
    finally:
        await store.close()


async def _choose(store: LogStore, args: argparse.Namespace) -> JobName:
    where = args.store or default_store_url()
    if args.job is not None and await _is_there(store, args.job):
        return JobName(args.job)  # access to one job does not imply permission to list all
    names = await store.jobs()
    if args.job is not None:
        return among(names, args)
    if not names:
        raise NotFound(f"no job in {where}; name another store with --store URL or FTCORE_STORE")
    if len(names) > 1:
        raise UsageError(f"{where} has {len(names)} jobs, name one with --job: {_listed(names)}")
    return names[0]


def among(names: list[JobName], args: argparse.Namespace) -> JobName:
    """The name in ``--job``, if it is one of ``names``.

    Raises:
        NotFound: it is not.
    """
    if args.job not in names:
        near = difflib.get_close_matches(args.job, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {_listed(names) or 'none'}"
        lost = "if its ftrun still runs, its log was removed, and training goes on without it"
        raise NotFound(f"no job {args.job!r} in {args.store or default_store_url()}; {hint}; {lost}")
    return JobName(args.job)


def _listed(names: list[JobName]) -> str:
    return listed(names, NAMED_MAX) + (", see ftctl jobs" if len(names) > NAMED_MAX else "")


async def jobs_shown(store: LogStore, args: argparse.Namespace) -> list[JobName]:
    """The jobs that ``ftctl jobs`` shows: all jobs of the store, or the job that ``--job`` names.

    Raises:
        NotFound: the store in ``--store`` does not exist, or has no such job.
    """
    missing = missing_path(args.store) if args.store else None
    if missing is not None:
        raise NotFound(f"no store {args.store}: {missing} does not exist; name another one with --store URL")
    names = await store.jobs()
    return names if args.job is None else [among(names, args)]


async def _is_there(store: LogStore, job: str) -> bool:
    try:
        await (await store.open(check_job_name(job))).close()
    except (NotFound, UsageError):
        return False
    return True
