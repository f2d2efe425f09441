"""The arguments of ``ftctl simulate`` and ``ftctl whatif``."""

import argparse
from collections.abc import Callable
from typing import Any

from ftcore.cli.ctl_types import duration_s, number, whole

FORMATS = ("table", "json")

SIMULATE = """\
ftctl simulate --nodes 2048 --days 54 --seed 1 --profile llama3
ftctl simulate --nodes 125 --days 30 --profile ant --policy policy.yaml --plot ant.svg
ftctl simulate --nodes 1000 --days 30 --rate 0.0065 --restart 5m --ckpt-interval 30m --ckpt-cost 30s
ftctl simulate --nodes 32 --days 60 --log sim.ftlog && ftctl --store file:sim.ftlog incidents
ftctl simulate --nodes 16 --days 1 --trace spot.tsv --format json | jq .goodput"""

WHATIF = """\
ftctl whatif --policy other.yaml
ftctl --store file:demo.ftlog whatif --policy other.yaml --format json | jq .totals"""


def add_futures(commands: Any, command: Callable[..., Any], reading: Callable[..., Any]) -> None:
    """Add both commands.

    Args:
        commands: the subparsers.
        command: adds a command without a log.
        reading: adds a command that reads a log.
    """
    _add_simulate(commands, command)
    whatif = reading(
        commands,
        "whatif",
        "Estimate what another policy would have cost: decide each incident of the log again with another chain.",
        WHATIF,
    )
    whatif.add_argument("--policy", required=True, metavar="FILE", help="the other policy file")
    whatif.add_argument("--profile", metavar="NAME", help="profile for figures that are not in the log; see simulate")
    add_assume(whatif)


def _add_simulate(commands: Any, command: Callable[..., Any]) -> None:
    simulate = command(
        commands,
        "simulate",
        "Simulate a job on a cluster with known failure rates: goodput, causes of loss, incidents, policies.",
        SIMULATE,
    )
    simulate.add_argument("--nodes", type=whole, required=True, metavar="N", help="nodes of the job")
    simulate.add_argument("--days", type=number, required=True, metavar="D", help="days of virtual time")
    simulate.add_argument("--seed", type=whole, default=0, metavar="S", help="random seed; default: 0")
    simulate.add_argument(
        "--seeds",
        type=whole,
        default=1,
        metavar="K",
        help="simulate K seeds, S to S+K-1, and report mean and spread; all other results are of the first",
    )
    simulate.add_argument(
        "--profile", metavar="NAME", help="rates and mix of failures: llama3 (default), opt175b, rsc1, ant"
    )
    simulate.add_argument("--policy", metavar="FILE", help="policy file; default: the default chain")
    simulate.add_argument(
        "--rate",
        type=number,
        metavar="R",
        help="failures per node and day; without --profile, all are killed processes",
    )
    simulate.add_argument(
        "--trace",
        metavar="FILE",
        help="file with failures, instead of a profile; see docs/how-to/simulate-a-cluster.md",
    )
    simulate.add_argument(
        "--restart", type=duration_s, metavar="TIME", help="time from a failure to the next step, as 300 or 5m"
    )
    simulate.add_argument(
        "--ckpt-interval", type=duration_s, metavar="TIME", help="training time between two checkpoints"
    )
    simulate.add_argument(
        "--ckpt-cost", type=duration_s, metavar="TIME", help="time that training stops for a checkpoint"
    )
    simulate.add_argument("--nodes-min", type=whole, metavar="N", help="fewest nodes of a round; default: all nodes")
    simulate.add_argument(
        "--plot", metavar="FILE.svg", help="draw goodput and losses over time; an existing SVG file is overwritten"
    )
    simulate.add_argument(
        "--log",
        metavar="FILE.ftlog",
        help="save the event log; read it with ftctl --store file:FILE.ftlog; an existing archive is overwritten",
    )
    add_assume(simulate)
    simulate.add_argument("--format", choices=FORMATS, default="table", help="default: table")


def add_assume(parser: argparse.ArgumentParser) -> None:
    """Add ``--assume`` to a command whose result depends on the job's abilities."""
    parser.add_argument(
        "--assume",
        metavar="ABILITY,...",
        help="assume that the job has these abilities, declared or not, supported by this ftcore or not; the output "
        "begins with a line that says so",
    )
