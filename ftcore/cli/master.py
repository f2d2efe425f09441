"""A candidate for the master role as a process of its own; started by agents, or by hand with ``ftrun --role master``.

It outlives the agent that started it, and ends with the job, with its term, or when no agent has called for a while.
"""

import argparse
import asyncio
import os
import signal
import sys

from ftcore.cli.places import MASTER_SAYS
from ftcore.errors import FtcoreError
from ftcore.ids import JobName
from ftcore.logs import open_store
from ftcore.runtime.logging import configure
from ftcore.runtime.master.master import Master
from ftcore.runtime.wire.client import token


def main(argv: list[str] | None = None) -> int:
    """Run a candidate; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ftcore.cli.master", description=__doc__)
    parser.add_argument("--store", required=True, help="URL of the log store")
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--listen", required=True, help="gRPC target to serve on")
    parser.add_argument("--advertise", default="", help="host name or address that agents use")
    parser.add_argument("--standby", action="store_true", help="end with the run that is under way")
    parser.add_argument("--log-level", default="warning", help="debug, info, warning or error")
    args = parser.parse_args(argv)
    configure(args.log_level)
    try:
        asyncio.run(_run(args))
    except FtcoreError as error:
        print(f"{MASTER_SAYS}{error}", file=sys.stderr)
        return error.exit_code
    return 0


async def _run(args: argparse.Namespace) -> None:
    store = open_store(args.store)
    log = await store.open(JobName(args.job), create=True)
    master = Master(log, listen=args.listen, advertise=args.advertise, token=token(), standby=args.standby)
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


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # gRPC's threads have nothing to say any more, and may take seconds to say it
