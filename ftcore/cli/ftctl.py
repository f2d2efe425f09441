"""``ftctl``: reads a job's log, dead or alive, and gives a living one the operator's word.

House rules: parsing and dispatch only; a command is a function of the parsed arguments that returns the exit code, and
lives with its kind in ``ctl_*.py``. JSON goes to stdout alone, messages to stderr. A user's mistake is one line and an
exit code, never a traceback; a closed pipe and Ctrl-C end quietly. Nothing heavy is imported before it is needed.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from ftcore import __version__
from ftcore.cli.ctl_parser import build_parser
from ftcore.errors import FtcoreError

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]

INTERRUPTED = 130
"""128 + SIGINT: what a shell reports for a program ended by Ctrl-C."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ftctl``; returns the exit code.

    Args:
        argv: the arguments without the program's name; ``sys.argv`` if None.
    """
    parser = build_parser(__version__)
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    args = parser.parse_args(argv)
    from ftcore.runtime.logging import configure  # structlog's console imports rich, when it is there

    configure("error")  # to stderr: JSON goes to stdout alone; an old server is the running job's to warn of
    try:
        with _interruptible():
            code: int = asyncio.run(_command(args.command)(args))
            sys.stdout.flush()
    except FtcoreError as error:
        print(f"ftctl: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader has seen enough; what Python flushes at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C end even what never waits: asyncio's own handler would only cancel a task that has to wait first."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, or somebody else's
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _command(name: str) -> Command:
    if name in ("jobs", "status"):
        from ftcore.cli import ctl_status

        return {"jobs": ctl_status.jobs, "status": ctl_status.status}[name]
    if name in ("incidents", "explain"):
        from ftcore.cli import ctl_incidents

        return {"incidents": ctl_incidents.incidents, "explain": ctl_incidents.explain}[name]
    if name == "events":
        from ftcore.cli import ctl_events

        return ctl_events.events
    if name == "policy":
        from ftcore.cli import ctl_policy

        return ctl_policy.policy
    if name in ("replay", "export"):
        from ftcore.cli import ctl_replay

        return {"replay": ctl_replay.replay, "export": ctl_replay.export_log}[name]
    if name in ("pause", "resume", "drain", "evict", "admit", "checkpoint", "stop"):
        from ftcore.cli import ctl_command

        return ctl_command.command
    if name == "classify":
        from ftcore.cli import ctl_classify

        return ctl_classify.classify
    if name == "alert":
        from ftcore.cli import ctl_alert

        return ctl_alert.alert
    if name == "spikes":
        from ftcore.cli import ctl_spikes

        return ctl_spikes.spikes
    if name == "simulate":
        from ftcore.cli import ctl_simulate

        return ctl_simulate.run
    if name == "whatif":
        from ftcore.cli import ctl_whatif

        return ctl_whatif.run
    from ftcore.cli import ctl_machines

    return {"machines": ctl_machines.machines, "completion": ctl_machines.completion}[name]


if __name__ == "__main__":
    sys.exit(main())
