"""``ftctl``: reads the log of a running or ended job, and sends operators' requests to a running one.

House rules: parsing and dispatch only; a command is a function in ``ctl_*.py`` from parsed arguments to the exit code.
JSON goes to stdout only, messages to stderr. A user error is one line and an exit code, never a traceback. Ctrl-C and a
closed pipe print nothing. Heavy modules are imported when they are needed.
"""

import argparse
import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TextIO, cast

from ftcore.cli.ctl_parser import build_parser
from ftcore.errors import INTERRUPTED, FtcoreError
from ftcore.version import __version__

Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]

_COMMANDS = {
    "jobs": "ctl_status.jobs",
    "status": "ctl_status.status",
    "top": "ctl_top.top",
    "events": "ctl_events.events",
    "incidents": "ctl_incidents.incidents",
    "explain": "ctl_explain.explain",
    "goodput": "ctl_goodput.run",
    "samples": "ctl_samples.run",
    "report": "ctl_report.run",
    "replay": "ctl_replay.replay",
    "bisect": "ctl_bisect.bisect",
    "export": "ctl_replay.export_log",
    "observe": "ctl_observe.observe",
    "salvage": "ctl_salvage.salvage",
    "machines": "ctl_machines.machines",
    "completion": "ctl_completion.completion",
    "checkpoints": "ctl_checkpoints.run",
    "classify": "ctl_classify.classify",
    "spikes": "ctl_spikes.spikes",
    "import": "ctl_import.run",
    "simulate": "ctl_simulate.run",
    "whatif": "ctl_whatif.run",
    "policy": "ctl_policy.policy",
    "alert": "ctl_alert.alert",
    "note": "ctl_note.note",
    "logbook": "ctl_logbook.logbook",
    "failures": "ctl_failures.failures",
    "logs": "ctl_logs.logs",
}
"""Module and function of each command; the operators' requests share ``ctl_command.command``."""

_READERS = {
    *("jobs", "status", "events", "incidents", "explain", "goodput", "samples", "report", "logbook", "failures"),
    *("machines", "completion", "classify", "spikes"),
}
"""Commands that import no structlog unless the store is etcd, so that they start sooner."""

_WITHOUT_LOG = {"machines", "completion", "classify", "spikes"}
"""Commands that wait for nothing."""

_FILE_READERS = {"events", "incidents", "explain", "goodput", "samples", "report", "logbook", "failures"}
"""Commands that wait for nothing if the store is a file."""

GC_THRESHOLD = 50_000
"""New objects between two searches for cycles. Reading a log makes many objects and no cycles: Python's 700 would cost
a third of the time. Memory stays bounded: most objects are freed by their reference counts."""

NOT_WRITTEN = 1
"""Exit code if standard output cannot be written, for example on a full disk."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``ftctl``; returns the exit code.

    Args:
        argv: the arguments without the program's name; ``sys.argv`` if None.
    """
    closed = sys.stdout is None  # by `>&-`
    output = _CheckedStdout(open(os.devnull, "w") if closed else sys.stdout)  # noqa: SIM115 -- for the rest of the process
    try:
        with contextlib.redirect_stdout(cast(TextIO, output)):
            try:
                return _run(argv)
            finally:
                output.flush()
    except BrokenPipeError:
        output.discard()  # the reader, such as `head`, has closed the pipe
        return 0
    except _NotWritten as error:
        output.discard()
        print(f"ftctl: cannot write to standard output: {error}", file=sys.stderr)
        return NOT_WRITTEN
    except KeyboardInterrupt:
        return INTERRUPTED


class _NotWritten(Exception):
    """Standard output cannot be written; the text is the reason."""


class _CheckedStdout:
    """Standard output that raises ``_NotWritten``, to distinguish its errors from those of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._converted_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._converted_errors():
            self._stream.flush()

    def discard(self) -> None:
        """Drop buffered output: Python would report an error about it at exit."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    @contextlib.contextmanager
    def _converted_errors(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _NotWritten(error.strerror) from error


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser(__version__, sys.argv[1:] if argv is None else argv)
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(parser)
    args = parser.parse_args(argv)
    if not _logs_nothing(args):
        from ftcore.launch import lean  # noqa: F401
        from ftcore.runtime.logging import configure

        configure("error")  # no warnings, for example of an old etcd server: the running job reports them
    gc.set_threshold(GC_THRESHOLD)
    try:
        with _interruptible():
            command: Command = getattr(args, "installed", None) or _command(args.command)
            code = _completed(command, args)
    except FtcoreError as error:
        from ftcore.launch.hints import hinted

        print(f"ftctl: {hinted(str(error), args)}", file=sys.stderr)
        return error.exit_code
    return code


def _completed(command: Command, args: argparse.Namespace) -> int:
    """Run a command to its end, without asyncio if it only reads a file."""
    reads_file = args.command in _FILE_READERS and (getattr(args, "store", None) or "").startswith("file:")
    if args.command in _WITHOUT_LOG or (reads_file and not getattr(args, "follow", False)):
        return _run_without_loop(command(args))
    import asyncio

    return asyncio.run(command(args))


def _run_without_loop(command: Coroutine[Any, Any, int]) -> int:
    """Run a command that waits for nothing: its blocking calls are made directly (``logs.in_thread``)."""
    try:
        command.send(None)
    except StopIteration as done:
        return int(done.value)
    command.close()
    raise AssertionError("the command waits for an event loop")


def _logs_nothing(args: argparse.Namespace) -> bool:
    store = getattr(args, "store", None) or ""
    return args.command in _READERS and not store.startswith("etcd:")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` on Ctrl-C even in code that never awaits: asyncio's handler only cancels the task."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # SIGINT is ignored or already handled
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _command(name: str) -> Command:
    """The function of a command; its module is imported only now."""
    module, _, function = _COMMANDS.get(name, "ctl_command.command").partition(".")
    command: Command = getattr(importlib.import_module(f"ftcore.cli.{module}"), function)
    return command


if __name__ == "__main__":
    sys.exit(main())
