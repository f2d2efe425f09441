"""``ftctl pause``, ``resume``, ``drain``, ``evict``, ``admit``, ``checkpoint``, ``stop``: requests of an operator.

The request is sent to the master, which records it with its user and reason. Its progress is then read from the log.
"""

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

import attrs

from ftcore.cli.ctl_output import print_json, say
from ftcore.cli.ctl_state import current_state
from ftcore.cli.ctl_store import opened
from ftcore.errors import Unreachable, UsageError
from ftcore.ids import Seq
from ftcore.launch.hints import hinted
from ftcore.ports import AppendOnlyLog, EventLog
from ftcore.replay.request import RequestReader
from ftcore.states.phases import has_ended, is_paused
from ftcore.wording import DONE, plural, printable

if TYPE_CHECKING:
    from ftcore.runtime.wire.frames import CommandReply

NOT_DONE = 1
"""Exit code for a recorded request that was dropped or has no verdict yet."""

_PHRASES = {"checkpoint": "save a checkpoint of the job"}

_AT_ONCE = {
    "held": "the job has no step to pause at now, so it is held: the current recovery continues, and no other one "
    "begins until: ftctl resume",
    "kept": "the job is paused for a disruption; when that is over, it stays paused until: ftctl resume",
    "let go": "the job is no longer held: recoveries may begin",
    "admitted": DONE["admit"],
    "resumed": "the nodes stop their workers and begin a new run, from the last checkpoint",
    "taken back": "the requested pause is cancelled; training goes on",
}
"""What the master did with a request that needs no verdict, by the outcome in its reply."""


async def command(args: argparse.Namespace) -> int:
    """Send the request to the master, then follow the log to its outcome."""
    node = getattr(args, "node", "")
    async with opened(args) as log:
        reply = await _send(log, args.store, args.command, node, args.why)
        request = RequestReader(seq=reply.seq, command=args.command, node=node)
        printer = _EventPrinter(log.job, args, quiet=args.format == "json")
        if not reply.seq:
            request.outcome, request.reason = "done", reply.message
        elif reply.outcome in _AT_ONCE:
            request.outcome, request.reason = "done", _AT_ONCE[reply.outcome].format(node=node)
        else:
            printer.line(f"{reply.message} as event {reply.seq}")
            if not args.no_wait:
                request.paused = is_paused(await current_state(log, Seq(request.seq)))
                await _follow(log, request, printer, args.timeout)
        lost = await _lost_steps(log) if args.command == "stop" and request.outcome == "done" else ""
    if args.format == "json":
        request.reason = hinted(request.reason, args)
        print_json(_json(log.job, request, reply.outcome))
    elif request.outcome:
        printer.line(f"{'' if request.outcome == 'done' else f'{request.outcome}: '}{request.reason}")
        if lost:
            printer.line(lost)
    elif not args.no_wait:
        progress = request.waits or f"no verdict in {args.timeout:g} s"
        follow = f"ftctl events --since {request.seq} --follow"
        printer.line(f"{progress}; the request stays recorded; follow it with: {follow}")
    return 0 if request.outcome == "done" or args.no_wait else NOT_DONE


async def _lost_steps(log: AppendOnlyLog) -> str:
    """The steps that a stopped job computes again, as far as its log has them; empty if none are known."""
    training = (await current_state(log)).training
    if training.step is None or not training.step_absolute or not training.checkpoints:
        return ""
    saved = training.checkpoints[-1]
    if training.step <= saved:
        return ""
    return f"the last known checkpoint is of step {saved}: {plural(training.step - saved, 'step')} after it are lost"


async def _send(log: EventLog, store: str | None, command: str, node: str, why: str) -> "CommandReply":
    """Send a command to the master and return its reply.

    Raises:
        UsageError: the job has ended.
        Unreachable: the job has not ended, and no master answers.
    """
    leader = await log.leader()
    try:
        if leader is None or not leader.alive:
            what = _PHRASES.get(command, f"{command} {node or 'the job'}")
            raise Unreachable(f"cannot {what}: no master leads {log.job}; is the job still running?")
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
            how = f"{state.phase}: {state.reason()}" if state.reason() else str(state.phase)
            raise UsageError(f"cannot {command}: {log.job} has already ended ({how})") from None
        raise


@attrs.frozen
class _EventPrinter:
    """Prints lines about the request on stderr, unless the output is JSON."""

    job: str
    args: argparse.Namespace
    quiet: bool

    def line(self, text: str) -> None:
        if not self.quiet:
            say(f"{self.job}: {printable(hinted(text, self.args))}")


async def _follow(log: AppendOnlyLog, request: RequestReader, printer: _EventPrinter, timeout_s: float) -> None:
    """Follow the log and print lines until the request is over, for at most ``timeout_s`` seconds."""
    try:
        async with asyncio.timeout(timeout_s):
            async for event in log.follow(Seq(request.seq)):
                if line := request.feed(event):
                    printer.line(line)
                if request.outcome:
                    return
    except TimeoutError:
        return


def _json(job: str, request: RequestReader, at_once: str) -> dict[str, Any]:
    return {
        "job": job,
        "command": request.command,
        "node": request.node or None,
        "seq": request.seq or None,
        "outcome": at_once if at_once in _AT_ONCE else request.outcome or None,
        "reason": request.reason or None,
        "incident": request.incident,
        "policies": [attrs.asdict(asked) for asked in request.policies],
    }
