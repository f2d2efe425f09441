"""``ftctl pause``, ``resume``, ``drain``, ``evict``, ``admit``, ``checkpoint``, ``stop``: an operator's word.

It is given to the master, who records it with who asked and why. What becomes of it is then read from the log, like
everything else here.
"""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

import attrs

from ftcore.cli.ctl_output import print_json, say
from ftcore.cli.ctl_store import current_state, opened
from ftcore.errors import Unreachable, UsageError
from ftcore.ids import Seq
from ftcore.launch.hints import hinted
from ftcore.ports import EventLog
from ftcore.replay.wish import Wish
from ftcore.states.phases import has_ended
from ftcore.wording import DONE, clean

if TYPE_CHECKING:
    from ftcore.runtime.wire.frames import CommandReply

TIMEOUT_S = 120.0
"""How long a verdict is waited for by default; the wish stands in the log, whoever waits."""

NOT_DONE = 1
"""Exit code for a wish that is recorded, and was dropped or has no verdict yet."""

_PHRASES = {"checkpoint": "have it save a checkpoint"}

_AT_ONCE = {
    "held": "there is no step to pause at now, so the job is held: what is under way goes on, and no other recovery "
    "begins until: ftctl resume",
    "let go": "the job is held no longer: recoveries may begin",
    "admitted": DONE["admit"],
    "resumed": "the nodes stop their workers and begin a new run, from the last checkpoint",
    "taken back": "the pause that was asked for is taken back; training goes on",
}


async def command(args: argparse.Namespace) -> int:
    """Give the master the command, then follow the log to what comes of it."""
    node = getattr(args, "node", "")
    async with opened(args) as log:
        reply = await _asked(log, args.store, args.command, node, args.why)
        wish = Wish(seq=reply.seq, command=args.command, node=node)
        told = _Told(log.job, args, quiet=args.format == "json")
        if not reply.seq:
            wish.outcome, wish.reason = "done", reply.message
        elif reply.outcome in _AT_ONCE:
            wish.outcome, wish.reason = "done", _AT_ONCE[reply.outcome].format(node=node)
        else:
            told.line(f"{reply.message} as event {reply.seq}")
            if not args.no_wait:
                await _follow(log, wish, told, args.timeout)
    if args.format == "json":
        wish.reason = hinted(wish.reason, args)
        print_json(_json(log.job, wish, reply.outcome))
    elif wish.outcome:
        told.line(f"{'' if wish.outcome == 'done' else f'{wish.outcome}: '}{wish.reason}")
    elif not args.no_wait:
        so_far = wish.waits or f"no verdict in {args.timeout:g} s"
        told.line(f"{so_far}; it stays asked for: ftctl events --since {wish.seq} --follow")
    return 0 if wish.outcome == "done" or args.no_wait else NOT_DONE


async def _asked(log: EventLog, store: str | None, command: str, node: str, why: str) -> "CommandReply":
    """What the master says to it.

    Raises:
        UsageError: the job has ended.
        Unreachable: no master answers, though the job has not.
    """
    leader = await log.leader()
    try:
        if leader is None or not leader.alive:
            what = _PHRASES.get(command, f"{command} {node or 'it'}")
            raise Unreachable(f"no master leads {log.job}, so nobody can {what}: is the job still running?")
        from ftcore.launch.security import credentials
        from ftcore.runtime.wire import client
        from ftcore.runtime.wire.transport import GrpcTransport

        security, address = credentials(store, log.job), leader.candidate.address
        return await client.command(
            GrpcTransport(security), address, log.job, command, security=security, node=node, why=why
        )
    except Unreachable:
        state = await current_state(log)
        if has_ended(state):
            how = f"{state.phase}: {state.reason}" if state.reason else str(state.phase)
            raise UsageError(f"{log.job} has ended ({how}): there is nobody who could be asked to {command}") from None
        raise


@attrs.frozen
class _Told:
    """Prints what happens as it happens, for people."""

    job: str
    args: argparse.Namespace
    quiet: bool

    def line(self, text: str) -> None:
        if not self.quiet:
            say(f"{self.job}: {clean(hinted(text, self.args))}")


async def _follow(log: EventLog, wish: Wish, told: _Told, timeout_s: float) -> None:
    """Follow the log until the wish is over, or for so long."""
    try:
        async with asyncio.timeout(timeout_s):
            async for event in log.follow(Seq(wish.seq)):
                if line := wish.feed(event):
                    told.line(line)
                if wish.outcome:
                    return
    except TimeoutError:
        return


def _json(job: str, wish: Wish, at_once: str) -> dict[str, Any]:
    return {
        "job": job,
        "command": wish.command,
        "node": wish.node or None,
        "seq": wish.seq or None,
        "outcome": at_once if at_once in _AT_ONCE else wish.outcome or None,
        "reason": wish.reason or None,
        "incident": wish.incident,
        "policies": [attrs.asdict(asked) for asked in wish.policies],
    }
