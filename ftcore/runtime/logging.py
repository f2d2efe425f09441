"""How ftcore's own processes log: structlog to stderr, one line per event, colour only on a terminal."""

import logging
import sys
from typing import Any, TextIO

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


def configure(level: str) -> None:
    """Set up logging for this process.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
