"""How ftcore's own processes log: structlog to stderr, one line per event.

A process that people look at says what it has to warn of in the words in which the job's story is told there; one that
writes to a file, as a master does, has a column for time and level.
"""

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

from ftcore.runtime.agent.output import Console


class PatientStream:
    """Stands in for ``sys.stderr``: writing to it neither waits nor fails, whoever reads or closes the console.

    Args:
        stream: the real one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(stream.fileno())

    def write(self, text: str) -> int:
        """Hand the text to the console's thread."""
        if text:
            self._console.put(text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        """There is nothing to wait for; see ``drain``."""

    def drain(self, timeout_s: float) -> None:
        """Wait until all is written, at most so long."""
        self._console.flush(timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class UnfailingStream:
    """Writes to a stream whose disk may be full, or which is closed: the line is lost, and no error is raised.

    Args:
        stream: the real one.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, if that is possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, if that is possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(level: str, *, to_file: bool = False) -> None:
    """Set up logging for this process.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        to_file: nobody looks at its stderr as it runs: each line has its time.
    """
    in_columns: list[structlog.typing.Processor] = [
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=True),
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
    ]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(in_columns if to_file else [structlog.processors.format_exc_info, prose]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, UnfailingStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def prose(_logger: Any, _method: str, said: MutableMapping[str, Any]) -> str:
    """A line as the job's story has them: ``ftcore: warning: what is the matter (node: n1)``."""
    level, event, trace = said.pop("level"), said.pop("event"), said.pop("exception", "")
    more = ", ".join(f"{name}: {value}" for name, value in said.items())
    return f"ftcore: {level}: {event}{f' ({more})' if more else ''}" + (f"\n{trace}" if trace else "")
