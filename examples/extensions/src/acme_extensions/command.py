"""``ftctl acme``: how often machines of a job were too hot."""

import argparse

from ftcore import open_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's own arguments."""
    parser.add_argument("--quiet", action="store_true", help="print the number alone")


async def run(args: argparse.Namespace) -> int:
    """Count the rests; returns the exit code."""
    log = await open_log(args.store, args.job)
    try:
        taken = [
            event
            async for event in log.read()
            if event.type == "policy.considered" and event.data.policy == "acme_rest" and event.data.verdict == "take"
        ]
    finally:
        await log.close()
    print(len(taken) if args.quiet else f"{args.job}: too hot {len(taken)} times")
    return 0
