"""Opening the log that a command reads."""

import argparse
import contextlib
import difflib
from collections.abc import AsyncIterator
from pathlib import Path

from ftcore.errors import NotFound, UsageError
from ftcore.events.envelope import Event
from ftcore.events.job import JobProgressed
from ftcore.ids import JobName, Seq
from ftcore.logs import check_job_name, default_store_url, open_store
from ftcore.logs.archived import JoinedLog
from ftcore.logs.stores import missing_path
from ftcore.ports import AppendOnlyLog, EventLog, LogStore
from ftcore.replay.reading import Folder, read_async
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall
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


async def current_state(log: AppendOnlyLog, until: Seq | None = None) -> JobState:
    """The state at the end of a log, or after ``until``, folded from the newest usable snapshot or from the start."""
    restored = await recall(log, until)
    folder = Folder(restored.state)
    await read_async(log.read(Seq(restored.state.seq), until), folder)
    return folder.state


class StepClock:
    """A reader that notes when the newest completed step became known; goes after the ``Folder`` of the same events.

    Attributes:
        at: the master's time, nanoseconds since the epoch; None: before the events that were read.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._step = state.training.step, state.training.step_round
        self.at: int | None = None

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        step = self._state.training.step, self._state.training.step_round
        if step != self._step or isinstance(event.data, JobProgressed):
            self._step, self.at = step, event.time


async def state_and_step_time(log: AppendOnlyLog) -> tuple[JobState, int | None]:
    """``current_state``, and when its newest step became known; None if that is before the newest snapshot."""
    restored = await recall(log, None)
    folder, clock = Folder(restored.state), StepClock(restored.state)
    await read_async(log.read(Seq(restored.state.seq)), folder, clock)
    return folder.state, clock.at


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
