"""Formats of ``ftctl export`` from installed packages: entry points of the group ``ftcore.exporters``, named as the
format. Names come from the packages' metadata; a package is loaded only if its format is asked for."""

import difflib
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import entry_points
from typing import Protocol

import attrs

from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.extensions import loaded

GROUP = "ftcore.exporters"
FTLOG = "ftlog"
"""ftcore's own format (``archive.py``), the only one that ``ftctl`` reads."""


class ExportOutput(Protocol):
    """Takes the bytes of an export, in order."""

    def write(self, data: bytes) -> None:
        """Write the next bytes."""


@attrs.frozen(kw_only=True)
class ExportFormat:
    """A format that a log can be exported to.

    Args:
        write: given the job, its events in order and the output, writes all of them. The log may be larger than the
            memory.
        name: for messages, as ``a Parquet file``.
        begins: the first bytes of each such file: a file that begins otherwise is not overwritten.
    """

    write: Callable[[str, AsyncIterator[Event], ExportOutput], Awaitable[None]]
    name: str
    begins: bytes


def format_names() -> tuple[str, ...]:
    """The names of all formats, ftcore's own first."""
    return (FTLOG, *sorted({entry.name for entry in entry_points(group=GROUP)} - {FTLOG}))


def export_format(name: str) -> ExportFormat:
    """The format of that name, of an installed package.

    Raises:
        UsageError: there is none, or its package cannot be used.
    """
    entry = next((entry for entry in entry_points(group=GROUP) if entry.name == name), None)
    if entry is None:
        near = difflib.get_close_matches(name, format_names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"installed are {', '.join(format_names())}"
        raise UsageError(f"--format: found {name!r}; {hint}")
    return loaded(entry, f"format {name}", ExportFormat)
