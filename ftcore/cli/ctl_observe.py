"""``ftctl observe``: runs an observer of a job in this process; see ``runtime/observers.py``."""

import argparse
import asyncio
import os
import signal

from ftcore.cli.ctl_store import opened
from ftcore.launch.security import credentials
from ftcore.runtime.agent.workers.processes import die_with_parent
from ftcore.runtime.log_context import describe
from ftcore.runtime.logging import configure
from ftcore.runtime.observers import Observed, observer

NICE = 10
"""Added to the niceness beside a master: where no core is free, training comes first."""


async def observe(args: argparse.Namespace) -> int:
    """Run the observer until it is interrupted.

    A process of a master (``--until-parent``) ends in good order with SIGTERM: it reads the log to its end first.
    """
    if args.until_parent:
        die_with_parent(args.until_parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for ftrun, which ends the master
        os.nice(NICE)
    configure(args.log_level, to_file=bool(args.until_parent))
    adapter = observer(args.url)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked by the master until now
    if args.once:
        over.set()
    async with opened(args) as log:
        describe(job=log.job, node=args.node)
        security = credentials(args.store, log.job)
        await adapter.run(args.url, Observed(log, security, over=over))
    return 0
