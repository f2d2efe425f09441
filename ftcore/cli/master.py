"""A candidate for the master role as a process of its own; started by agents, or by ``ftrun --leadership only``.

It outlives the agent that started it, and ends with the job, with its term, or when no agent has called for a while.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from pathlib import Path

from ftcore.cli import lean  # noqa: F401  # isort: skip -- first of all
from ftcore.cli.places import MASTER_SAYS, credentials
from ftcore.errors import FtcoreError
from ftcore.ids import JobName
from ftcore.logs import open_store
from ftcore.logs.archived import JoinedLog
from ftcore.logs.pieces import Archive
from ftcore.runtime.logging import configure
from ftcore.runtime.master.keeper import Sizes, Upkeep
from ftcore.runtime.master.master import Master
from ftcore.timing import DEFAULT

GARBAGE_OBJECTS = 50_000
"""So many objects more than before are made between two searches for garbage, each of some 20 ms."""


def main(argv: list[str] | None = None) -> int:
    """Run a candidate; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ftcore.cli.master", description=__doc__)
    parser.add_argument("--store", required=True, help="URL of the log store")
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--listen", required=True, help="gRPC target to serve on")
    parser.add_argument("--advertise", default="", help="host name or address that agents use")
    parser.add_argument("--platform", default="", help="URL of what launches nodes")
    parser.add_argument("--nodes", type=int, default=1, help="nodes that the job may have: many need a longer lease")
    parser.add_argument("--standby", action="store_true", help="end with the run that is under way")
    parser.add_argument("--archive", type=Path, default=None, help="where old events are moved to")
    parser.add_argument("--keep-events", type=int, default=Sizes().keep, help="events that stay in the store")
    parser.add_argument("--snapshot-events", type=int, default=Sizes().snapshot, help="events between two snapshots")
    parser.add_argument("--log-level", default="warning", help="debug, info, warning or error")
    args = parser.parse_args(argv)
    configure(args.log_level, to_file=True)
    _raise_descriptors()
    _search_garbage_rarely()
    try:
        asyncio.run(_run(args))
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


async def _run(args: argparse.Namespace) -> None:
    timing = DEFAULT.for_nodes(args.nodes)
    store = open_store(args.store, timing)
    log = await store.open(JobName(args.job), create=True)
    # A handle of its own: what is read and written to keep the log small never stands in an append's way.
    own = await store.open(JobName(args.job))
    upkeep = Upkeep(log=own, archive=Archive(args.archive, log.job) if args.archive else None, sizes=_sizes(args))
    master = Master(
        JoinedLog(log, args.archive),
        listen=args.listen,
        advertise=args.advertise,
        security=credentials(args.store, args.job, make=True),
        platform=args.platform,
        timing=timing,
        standby=args.standby,
        upkeep=upkeep,
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


def _sizes(args: argparse.Namespace) -> Sizes:
    """A piece is a fifth of what lies between two snapshots: truncation waits for the last of the two."""
    snapshot: int = args.snapshot_events
    return Sizes(
        snapshot=snapshot,
        quiet_snapshot=min(Sizes().quiet_snapshot, snapshot),
        piece=max(1, min(Sizes().piece, snapshot // 5)),
        keep=args.keep_events,
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # gRPC's threads have nothing to say any more, and may take seconds to say it
