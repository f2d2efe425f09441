"""Configuration of a candidate for the master role."""

import json
import os
import sys
from pathlib import Path

import attrs

from ftcore.launch.address import on_this_machine
from ftcore.launch.paths import master_socket

PROGRAM = "ftcore.cli.master"
"""The module that reads the flags of a ``Candidacy`` and runs it (``master.run``)."""

MASTER_PREFIX = "ftcore master: "
"""Prefix of a candidate's last message if it ends with an error."""


def archive_dir(given: str | None) -> Path | None:
    """The directory for old events: the given one, or that of ``FTCORE_ARCHIVE``; None if there is none."""
    where = given or os.environ.get("FTCORE_ARCHIVE") or ""
    return Path(where).expanduser().absolute() if where else None


@attrs.frozen(kw_only=True)
class Candidacy:
    """Configuration of a candidate for the master role; each field is a flag of its process.

    Args:
        store: URL of the log store.
        job: the job.
        keep_events: number of events kept in the store.
        snapshot_events: events between two snapshots.
        archive: directory for older events; None: no events are removed from the store.
        advertise: host name or address that agents use.
        listen: gRPC target to serve on; empty: a socket on this machine, or a free port if the job has other hosts.
        platform: URL of the platform that launches nodes; empty if there is none.
        node_argv: command line of a node of the job, which the platform may start; empty: unknown.
        nodes: largest number of nodes of the job; many nodes need a longer lease.
        standby: the process ends with the current run.
        log_level: debug, info, warning or error.
        observe: URLs of observers (``runtime/observers.py``).
        node: the node that it runs on, for log lines; empty: none.
    """

    store: str
    job: str
    keep_events: int
    snapshot_events: int
    archive: Path | None = None
    advertise: str = ""
    listen: str = ""
    platform: str = ""
    node_argv: tuple[str, ...] = ()
    nodes: int = 1
    standby: bool = False
    log_level: str = "warning"
    observe: tuple[str, ...] = ()
    node: str = ""

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
        argv = [sys.executable, "-m", PROGRAM]
        for name, value in (attrs.asdict(self) | {"listen": self.target()}).items():
            if value:
                text = json.dumps(value) if isinstance(value, tuple) else str(value)
                argv += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
        return argv
