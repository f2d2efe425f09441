"""The command line of a candidate for the master role; started by agents, never by hand."""

import argparse
import sys
from pathlib import Path

from ftcore.launch import lean  # noqa: F401  # isort: skip -- first of all
from ftcore.launch import master
from ftcore.launch.candidacy import Candidacy
from ftcore.launch.process import end_process
from ftcore.runtime.master.retention import Sizes


def main(argv: list[str] | None = None) -> int:
    """Run a candidate; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ftcore.cli.master", description=master.__doc__)
    parser.add_argument("--store", required=True, help="URL of the log store")
    parser.add_argument("--job", required=True, help="name of the job")
    parser.add_argument("--listen", required=True, help="gRPC target to serve on")
    parser.add_argument("--advertise", default="", help="host name or address that agents use")
    parser.add_argument("--platform", default="", help="URL of what launches nodes")
    parser.add_argument("--nodes", type=int, default=1, help="nodes that the job may have: many need a longer lease")
    parser.add_argument("--standby", action="store_true", help="end with the run that is under way")
    parser.add_argument("--archive", type=Path, default=None, help="where old events are moved to")
    parser.add_argument("--keep-events", type=int, default=Sizes().keep, help="events that stay in the store")
    parser.add_argument("--snapshot-events", type=int, default=Sizes().snapshot, help="events between two snapshots")
    parser.add_argument("--log-level", default="warning", help="debug, info, warning or error")
    return master.run(Candidacy(**vars(parser.parse_args(argv))))


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
