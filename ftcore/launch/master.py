"""The process of a candidate for the master role; started by agents, or by ``ftrun --leadership only``.

It outlives the agent that started it, and ends with the job, with its term, or when no agent has called for some time.
"""

import asyncio
import contextlib
import gc
import resource
import signal
import sys

from ftcore.errors import FtcoreError
from ftcore.ids import JobName
from ftcore.launch.candidacy import MASTER_PREFIX, Candidacy
from ftcore.launch.observing import ObserverProcesses
from ftcore.launch.overview import LogOverview
from ftcore.launch.security import credentials
from ftcore.logs import open_store
from ftcore.logs.archived import JoinedLog
from ftcore.logs.pieces import FileArchive
from ftcore.runtime.log_context import describe
from ftcore.runtime.logging import configure
from ftcore.runtime.master.master import Master
from ftcore.runtime.master.retention import RetentionConfig, Sizes
from ftcore.timing import DEFAULT

GARBAGE_OBJECTS = 50_000
"""New objects between two garbage collections, each of about 20 ms."""


def run(candidacy: Candidacy) -> int:
    """Run a candidate as this process; returns the exit code."""
    configure(candidacy.log_level, to_file=True)
    describe(job=candidacy.job, node=candidacy.node)
    _raise_descriptors()
    _search_garbage_rarely()
    try:
        asyncio.run(_lead(candidacy))
    except FtcoreError as error:
        print(f"{MASTER_PREFIX}{error}", file=sys.stderr)
        return error.exit_code
    return 0


def _raise_descriptors() -> None:
    """Raise the limit of open files: each agent is a connection, and a large job exceeds the usual limit of 1024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _search_garbage_rarely() -> None:
    """Make garbage collection rarer, in proportion to the large heap.

    Each node and its stream add about 80 permanent objects, beside 100,000 imported ones. With Python's defaults, all
    are traversed repeatedly while thousands of agents connect, which costs as much CPU time as all other work.
    """
    gc.freeze()  # imported objects are permanent
    gc.set_threshold(GARBAGE_OBJECTS)


async def _lead(candidacy: Candidacy) -> None:
    timing = DEFAULT.for_nodes(candidacy.nodes)
    store = open_store(candidacy.store, timing)
    log = await store.open(JobName(candidacy.job), create=True)
    # A second handle: reads and writes for retention must not block appends.
    own = await store.open(JobName(candidacy.job))
    archive = candidacy.archive
    kept = FileArchive(archive, log.job) if archive else None
    observers = ObserverProcesses(candidacy)
    master = Master(
        JoinedLog(log, archive),
        listen=candidacy.target(),
        advertise=candidacy.advertise,
        security=credentials(candidacy.store, candidacy.job, make=True),
        platform=candidacy.platform,
        node_argv=candidacy.node_argv,
        timing=timing,
        standby=candidacy.standby,
        retention=RetentionConfig(log=own, archive=kept, sizes=_sizes(candidacy), overview=LogOverview),
        on_leading=observers.start,
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
        await observers.end()
        await log.close()
        await store.close()


def _sizes(candidacy: Candidacy) -> Sizes:
    """Sizes for retention; a piece is a fifth of the snapshot interval, because truncation waits for the snapshot."""
    snapshot = candidacy.snapshot_events
    return Sizes(
        snapshot=snapshot,
        quiet_snapshot=min(Sizes().quiet_snapshot, snapshot),
        piece=max(1, min(Sizes().piece, snapshot // 5)),
        keep=candidacy.keep_events,
    )
