"""Command line of a candidate for the master role; agents start it, users do not."""

import argparse
import json
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
    parser.add_argument("--platform", default="", help="URL of the platform that launches nodes")
    parser.add_argument("--node-argv", type=_words, default=(), help="JSON list: command line of a node of the job")
    parser.add_argument(
        "--nodes", type=int, default=1, help="largest number of nodes of the job; many nodes need a longer lease"
    )
    parser.add_argument("--standby", action="store_true", help="exit when the current run ends")
    parser.add_argument("--archive", type=Path, default=None, help="directory to which old events are moved")
    parser.add_argument("--keep-events", type=int, default=Sizes().keep, help="number of events kept in the store")
    parser.add_argument("--snapshot-events", type=int, default=Sizes().snapshot, help="events between two snapshots")
    parser.add_argument("--log-level", default="warning", help="debug, info, warning or error")
    parser.add_argument("--observe", type=_words, default=(), help="JSON list: URLs of observers")
    parser.add_argument("--node", default="", help="the node that it runs on, for log lines")
    return master.run(Candidacy(**vars(parser.parse_args(argv))))


def _words(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


if __name__ == "__main__":
    end_process(main(sys.argv[1:]))
