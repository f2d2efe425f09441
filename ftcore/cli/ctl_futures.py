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
        "Tell what another policy would have cost: each incident of the log decided again under another chain.",
        WHATIF,
    )
    whatif.add_argument("--policy", required=True, metavar="FILE", help="the other policy file")
    whatif.add_argument(
        "--profile", metavar="NAME", help="take from this profile what the log does not tell; see simulate"
    )
    add_assume(whatif)


def _add_simulate(commands: Any, command: Callable[..., Any]) -> None:
    simulate = command(
        commands,
        "simulate",
        "Simulate a job on a cluster that fails like a known one: goodput by cause, incidents, how the policies fared.",
        SIMULATE,
    )
    simulate.add_argument("--nodes", type=whole, required=True, metavar="N", help="nodes of the job")
    simulate.add_argument("--days", type=number, required=True, metavar="D", help="days of virtual time")
    simulate.add_argument("--seed", type=whole, default=0, metavar="S", help="seed of all chance; default: 0")
    simulate.add_argument(
        "--seeds",
        type=whole,
        default=1,
        metavar="K",
        help="simulate K seeds from S on and tell how far they spread; what else is told is of the first",
    )
    simulate.add_argument(
        "--profile", metavar="NAME", help="rates and mix of failures: llama3 (default), opt175b, rsc1, ant"
    )
    simulate.add_argument("--policy", metavar="FILE", help="the chain; default: that of a job without a policy file")
    simulate.add_argument(
        "--rate",
        type=number,
        metavar="R",
        help="failures per node and day; without --profile, of killed processes only",
    )
    simulate.add_argument("--trace", metavar="FILE", help="what goes wrong, instead of a profile; see the how-to")
    simulate.add_argument(
        "--restart", type=duration_s, metavar="TIME", help="from a failure until training goes on, as 300 or 5m"
    )
    simulate.add_argument("--ckpt-interval", type=duration_s, metavar="TIME", help="training between two checkpoints")
    simulate.add_argument("--ckpt-cost", type=duration_s, metavar="TIME", help="training stands still for a checkpoint")
    simulate.add_argument("--nodes-min", type=whole, metavar="N", help="the job runs with so few; default: with all")
    simulate.add_argument(
        "--plot", metavar="FILE.svg", help="draw goodput and losses over time; another picture is replaced"
    )
    simulate.add_argument(
        "--log",
        metavar="FILE.ftlog",
        help="keep the log; read it with ftctl --store file:FILE.ftlog, as any other; another archive is replaced",
    )
    add_assume(simulate)
    simulate.add_argument("--format", choices=FORMATS, default="table", help="default: table")


def add_assume(parser: argparse.ArgumentParser) -> None:
    """Add ``--assume`` to a command that asks what a job is able to do."""
    parser.add_argument(
        "--assume",
        metavar="ABILITY,...",
        help="what if the job had these abilities, whether or not it declares them and this ftcore can carry them out; "
        "the output begins with a line that says so",
    )
