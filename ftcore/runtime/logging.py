"""Logging of ftcore's own processes: structlog to stderr, one line per event.

A process with a console logs in the format of the job's narration. A process that logs to a file, such as a master, has
columns for time and level. With ``ftrun --log-format json``, each line is a JSON object, with the fields of
``log_context``.
"""

import contextlib
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import msgspec
import structlog

from ftcore.runtime.agent.workers.output import Console
from ftcore.runtime.log_context import add_context
from ftcore.runtime.log_format import is_json


class PatientStream:
    """A replacement of ``sys.stderr`` whose writes neither block nor fail, even if the console is slow or closed.

    Args:
        stream: the real stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(stream.fileno())

    def write(self, text: str) -> int:
        """Pass the text to the console's thread."""
        if text:
            self._console.put(text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing; see ``drain``."""

    def drain(self, timeout_s: float) -> None:
        """Wait until all text is written, at most ``timeout_s`` seconds."""
        self._console.flush(timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class UnfailingStream:
    """A stream that drops lines instead of raising, for a full disk or a closed stream.

    Args:
        stream: the real stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text if possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush buffered text if possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure(level: str, *, to_file: bool = False) -> None:
    """Set up logging for this process.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        to_file: stderr is a file: each line has a timestamp.
    """
    in_columns: list[structlog.typing.Processor] = [
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=True),
        structlog.processors.format_exc_info,
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
    ]
    as_json: list[structlog.typing.Processor] = [
        add_context,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(serializer=_json),
    ]
    as_text = in_columns if to_file else [structlog.processors.format_exc_info, prose]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(as_json if is_json() else as_text),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, UnfailingStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )


def _json(fields: Any, **_options: Any) -> str:
    return msgspec.json.encode(fields, enc_hook=str).decode()


def prose(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> str:
    """A log line in the format of the narration: ``ftcore: warning: message (node: n1)``."""
    level, event, trace = fields.pop("level"), fields.pop("event"), fields.pop("exception", "")
    more = ", ".join(f"{name}: {value}" for name, value in fields.items())
    return f"ftcore: {level}: {event}{f' ({more})' if more else ''}" + (f"\n{trace}" if trace else "")
