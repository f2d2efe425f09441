"""How ftcore's own processes log: structlog to stderr, one line per event, colour only on a terminal."""

import logging
import sys

import structlog


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
