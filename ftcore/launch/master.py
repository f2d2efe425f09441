"""A candidate for the master role as a process of its own; started by agents, or by ``ftrun --leadership only``.

It outlives the agent that started it, and ends with the job, with its term, or when no agent has called for a while.
"""

import asyncio
import contextlib
import gc
import resource
import signal
import sys

from ftcore.errors import FtcoreError
from ftcore.ids import JobName
from ftcore.launch.candidacy import MASTER_SAYS, Candidacy
from ftcore.launch.security import credentials
from ftcore.logs import open_store
from ftcore.logs.archived import JoinedLog
from ftcore.logs.pieces import Archive
from ftcore.runtime.logging import configure
from ftcore.runtime.master.master import Master
from ftcore.runtime.master.retention import RetentionConfig, Sizes
from ftcore.timing import DEFAULT

GARBAGE_OBJECTS = 50_000
"""So many objects more than before are made between two searches for garbage, each of some 20 ms."""


def run(candidacy: Candidacy) -> int:
    """Run a candidate in this process, which is its own; returns the exit code."""
    configure(candidacy.log_level, to_file=True)
    _raise_descriptors()
    _search_garbage_rarely()
    try:
        asyncio.run(_lead(candidacy))
    except FtcoreError as error:
        print(f"{MASTER_SAYS}{error}", file=sys.stderr)
        return error.exit_code
    return 0


def _raise_descriptors() -> None:
    """Each agent is a connection, and the usual soft limit of 1024 would be the end of a large job."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _search_garbage_rarely() -> None:
    """Have Python's search for garbage look at the heap as seldom as that is large.

    The state of each node and its stream are some 80 objects that stay, beside 100,000 of what was imported. By default
    all are looked at again and again while thousands of agents call at once, which takes as long as all else together.
    """
    gc.freeze()  # what was imported stays as long as the process
    gc.set_threshold(GARBAGE_OBJECTS)


async def _lead(candidacy: Candidacy) -> None:
    timing = DEFAULT.for_nodes(candidacy.nodes)
    store = open_store(candidacy.store, timing)
    log = await store.open(JobName(candidacy.job), create=True)
    # A handle of its own: what is read and written to keep the log small never stands in an append's way.
    own = await store.open(JobName(candidacy.job))
    archive = candidacy.archive
    kept = Archive(archive, log.job) if archive else None
    master = Master(
        JoinedLog(log, archive),
        listen=candidacy.target(),
        advertise=candidacy.advertise,
        security=credentials(candidacy.store, candidacy.job, make=True),
        platform=candidacy.platform,
        timing=timing,
        standby=candidacy.standby,
        retention=RetentionConfig(log=own, archive=kept, sizes=_sizes(candidacy)),
    )
    running = asyncio.create_task(master.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        pass
    finally:
        await log.close()
        await store.close()


def _sizes(candidacy: Candidacy) -> Sizes:
    """A piece is a fifth of what lies between two snapshots: truncation waits for the last of the two."""
    snapshot = candidacy.snapshot_events
    return Sizes(
        snapshot=snapshot,
        quiet_snapshot=min(Sizes().quiet_snapshot, snapshot),
        piece=max(1, min(Sizes().piece, snapshot // 5)),
        keep=candidacy.keep_events,
    )
