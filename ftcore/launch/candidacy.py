"""What a candidate for the master role is started with."""

import os
import sys
from pathlib import Path

import attrs

from ftcore.launch.address import on_this_machine
from ftcore.launch.paths import master_socket

PROGRAM = "ftcore.cli.master"
"""The module that reads the flags of a ``Candidacy`` and runs it (``master.run``)."""

MASTER_SAYS = "ftcore master: "
"""How the last line of a candidate's messages begins if it cannot go on."""


def archive_dir(given: str | None) -> Path | None:
    """The directory for old events: the one that is given, or that of ``FTCORE_ARCHIVE``; None: there is none."""
    where = given or os.environ.get("FTCORE_ARCHIVE") or ""
    return Path(where).expanduser().absolute() if where else None


@attrs.frozen(kw_only=True)
class Candidacy:
    """What a candidate for the master role needs to know; each field is a flag of its process.

    Args:
        store: URL of the log store.
        job: the job.
        keep_events: events that stay in the store.
        snapshot_events: events between two snapshots.
        archive: directory for older events; None: none are taken out of the store.
        advertise: host name or address that agents use.
        listen: gRPC target to serve on; empty: a socket of this machine, or a free port if other hosts take part.
        platform: URL of what launches nodes; empty: nothing does.
        nodes: nodes that the job may have: many need a longer lease.
        standby: it ends with the run that is under way.
        log_level: debug, info, warning or error.
    """

    store: str
    job: str
    keep_events: int
    snapshot_events: int
    archive: Path | None = None
    advertise: str = ""
    listen: str = ""
    platform: str = ""
    nodes: int = 1
    standby: bool = False
    log_level: str = "warning"

    def target(self) -> str:
        """The gRPC target to serve on.

        Raises:
            UsageError: no directory for a socket can be made.
        """
        return self.listen or (master_socket(self.store) if on_this_machine(self.store) else "[::]:0")

    def argv(self) -> list[str]:
        """The command line of the candidate's process.

        Raises:
            UsageError: as ``target``.
        """
        words = [sys.executable, "-m", PROGRAM]
        for name, value in (attrs.asdict(self) | {"listen": self.target()}).items():
            if value:
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words
