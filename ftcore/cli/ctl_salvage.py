"""``ftctl salvage``: what can be read of a damaged log on this machine becomes a new log."""

import argparse
import asyncio
import uuid
from pathlib import Path
from typing import Any

from ftcore.cli.ctl_output import print_json, say
from ftcore.engine.turn import own_fact, sequence
from ftcore.errors import NotFound, UsageError
from ftcore.events import encode
from ftcore.events.job import LogSalvaged
from ftcore.ids import JobName
from ftcore.logs import open_store
from ftcore.logs.sqlite_salvage import Readable, held, readable, replace
from ftcore.logs.stores import log_file
from ftcore.runtime.clock import SystemClock
from ftcore.states.model import JobState
from ftcore.wording import plural


async def salvage(args: argparse.Namespace) -> int:
    """Make a new log of what can be read, and say what was lost."""
    path, job = await _place(args)
    found, damaged = await asyncio.to_thread(_salvage, path, job)
    if args.format == "json":
        print_json(_json(found, damaged))
    elif damaged is None:
        say(f"{path}: all {plural(len(found.events), 'event')} can be read; nothing was changed")
    else:
        lost = "an unknown number of events" if found.lost is None else plural(found.lost, "event")
        say(f"{path}: {found.why or 'its head cannot be read'}")
        say(f"events up to {found.last} are in the new log; {lost} behind it lost; the damaged file is now {damaged}")
        say("start the job again with the same command line: it goes on from its last checkpoint")
    return 0


def _json(found: Readable, damaged: Path | None) -> dict[str, Any]:
    return {
        "job": found.job,
        "salvaged": damaged is not None,
        "last_seq": found.last,
        "lost_count": found.lost,
        "reason": found.why,
        "damaged": None if damaged is None else str(damaged),
    }


async def _place(args: argparse.Namespace) -> tuple[Path, JobName]:
    """The file of the job that is named, or of the only one."""
    job = args.job
    if job is None:
        store = open_store(args.store)
        try:
            names = await store.jobs()
        finally:
            await store.close()
        if len(names) != 1:
            raise UsageError(f"the store holds {plural(len(names), 'job')}; name one with --job")
        job = names[0]
    path = log_file(args.store, job)
    if path is None:
        raise UsageError("only a log in SQLite can be salvaged; etcd keeps copies of its own: see `etcdctl snapshot`")
    if not path.exists():
        raise NotFound(f"there is no log at {path}")
    return path, JobName(job)


def _salvage(path: Path, job: JobName) -> tuple[Readable, Path | None]:
    with held(path):
        found = readable(path, job)
        if not found.why and found.end is not None:
            return found, None
        return found, replace(found, lambda damaged: (_word(found, damaged),))


def _word(found: Readable, damaged: Path) -> bytes:
    """The first event behind those that were salvaged."""
    time = found.events[-1].time
    fact = own_fact(
        LogSalvaged(
            log_id=uuid.uuid4().hex,
            damaged=str(damaged),
            last=found.last,
            lost=found.lost,
            reason=found.why or "its head cannot be read",
        )
    )
    state = JobState(seq=found.last, time=time)
    return encode(sequence(state, fact, now=SystemClock(time).now(), term=found.term))
