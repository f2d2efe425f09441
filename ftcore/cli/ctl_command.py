"""``ftctl stop`` and ``ftctl resume``: an operator's word, given to the master, who records it with who asked."""

import argparse

from ftcore.cli.ctl_output import print_json, say
from ftcore.cli.ctl_store import opened
from ftcore.errors import Unreachable


async def command(args: argparse.Namespace) -> int:
    """Give the master the command; done once it is in the log."""
    async with opened(args) as log:
        job, leader = log.job, await log.leader()
    if leader is None or not leader.alive:
        raise Unreachable(f"no master leads {job}, so nobody can {args.command} it: is the job still running?")
    from ftcore.runtime.wire import client

    reply = await client.command(leader.candidate.address, job, args.command, why=args.why)
    if args.format == "json":
        print_json({"job": job, "command": args.command, "seq": reply.seq})
    else:
        say(f"{job}: {reply.message} as event {reply.seq}")
    return 0
