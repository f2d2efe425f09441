"""``ftctl salvage``: makes a new log of the readable events of a damaged log on this machine."""

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
from ftcore.logs.sqlite_salvage import Readable, exclusive, readable, replace
from ftcore.logs.stores import log_file
from ftcore.runtime.clock import SystemClock
from ftcore.states.model import JobState
from ftcore.wording import plural


async def salvage(args: argparse.Namespace) -> int:
    """Make a new log of the readable events, and print what was lost."""
    path, job = await _log_path(args)
    found, damaged = await asyncio.to_thread(_salvage, path, job)
    if args.format == "json":
        print_json(_json(found, damaged))
    elif damaged is None:
        say(f"{path}: all {plural(len(found.events), 'event')} can be read; nothing was changed")
    else:
        lost = "an unknown number of events" if found.lost is None else plural(found.lost, "event")
        say(f"{path}: {found.why or 'its head cannot be read'}")
        say(f"the new log has events 1 to {found.last}; {lost} lost after it; the damaged file is now {damaged}")
        say("start the job again with the same command line: it continues from its last checkpoint")
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


async def _log_path(args: argparse.Namespace) -> tuple[Path, JobName]:
    """The log file of ``--job``, or of the only job in the store."""
    job = args.job
    if job is None:
        store = open_store(args.store)
        try:
            names = await store.jobs()
        finally:
            await store.close()
        if len(names) != 1:
            raise UsageError(f"the store has {plural(len(names), 'job')}; name one with --job")
        job = names[0]
    path = log_file(args.store, job)
    if path is None:
        raise UsageError("only a SQLite log can be salvaged; for etcd, restore a snapshot: see `etcdctl snapshot`")
    if not path.exists():
        raise NotFound(f"no log at {path}")
    return path, JobName(job)


def _salvage(path: Path, job: JobName) -> tuple[Readable, Path | None]:
    with exclusive(path):
        found = readable(path, job)
        if not found.why and found.end is not None:
            return found, None
        return found, replace(found, lambda damaged: (_salvaged_event(found, damaged),))


def _salvaged_event(found: Readable, damaged: Path) -> bytes:
    """The encoded ``log.salvaged`` event after the salvaged events."""
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
