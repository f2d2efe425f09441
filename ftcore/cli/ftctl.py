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
from typing import Any, TextIO, cast

from ftcore.cli.ctl_parser import build_parser
from ftcore.errors import INTERRUPTED, FtcoreError
from ftcore.launch.environ import silence_grpc
from ftcore.launch.hints import hinted
from ftcore.version import __version__

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]

NOT_WRITTEN = 1
"""Exit code where standard output cannot be written, as on a full disk."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ftctl``; returns the exit code.

    Args:
        argv: the arguments without the program's name; ``sys.argv`` if None.
    """
    closed = sys.stdout is None  # by `>&-`
    output = _Output(open(os.devnull, "w") if closed else sys.stdout)  # noqa: SIM115 -- for the rest of the process
    try:
        with contextlib.redirect_stdout(cast(TextIO, output)):
            try:
                return _run(argv)
            finally:
                output.flush()
    except BrokenPipeError:
        output.discard()  # the reader has seen enough
        return 0
    except _NotWritten as lost:
        output.discard()
        print(f"ftctl: cannot write to standard output: {lost}", file=sys.stderr)
        return NOT_WRITTEN
    except KeyboardInterrupt:
        return INTERRUPTED


class _NotWritten(Exception):
    """Standard output cannot be written; says why."""


class _Output:
    """Standard output whose failures are told from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._told():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._told():
            self._stream.flush()

    def discard(self) -> None:
        """Drop what is still buffered: Python would complain of it at exit."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _NotWritten(error.strerror) from error


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser(__version__)
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    args = parser.parse_args(argv)
    silence_grpc()
    from ftcore.runtime.logging import configure  # structlog's console imports rich, when it is there

    configure("error")  # to stderr: JSON goes to stdout alone; an old server is the running job's to warn of
    try:
        with _interruptible():
            code: int = asyncio.run(_command(args.command)(args))
    except FtcoreError as error:
        print(f"ftctl: {hinted(str(error), args)}", file=sys.stderr)
        return error.exit_code
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
    if name == "salvage":
        from ftcore.cli import ctl_salvage

        return ctl_salvage.salvage
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
