"""Which log a command reads."""

import argparse
import contextlib
import difflib
from collections.abc import AsyncIterator

from ftcore.errors import NotFound, UsageError
from ftcore.ids import JobName
from ftcore.logs import default_store_url, open_store
from ftcore.ports import EventLog, LogStore


@contextlib.asynccontextmanager
async def opened(args: argparse.Namespace) -> AsyncIterator[EventLog]:
    """The log that ``--store`` and ``--job`` name, closed afterwards.

    Raises:
        NotFound: there is no such job, or no job at all.
        UsageError: several jobs are there and none was named.
    """
    store = open_store(args.store)
    try:
        log = await store.open(await _choose(store, args))
        try:
            yield log
        finally:
            await log.close()
    finally:
        await store.close()


async def job_names(url: str | None) -> list[JobName]:
    """The jobs in a store, sorted."""
    store = open_store(url)
    try:
        return await store.jobs()
    finally:
        await store.close()


async def _choose(store: LogStore, args: argparse.Namespace) -> JobName:
    where = args.store or default_store_url()
    names = await store.jobs()
    if args.job is not None:
        if args.job not in names:
            near = difflib.get_close_matches(args.job, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names[:10]) or 'none'}"
            raise NotFound(f"no job {args.job!r} in {where}; {hint}")
        return JobName(args.job)
    if not names:
        raise NotFound(f"no job in {where}; name another store with --store URL or FTCORE_STORE")
    if len(names) > 1:
        raise UsageError(f"{where} holds {len(names)} jobs, name one with --job: {', '.join(names[:10])}")
    return names[0]
