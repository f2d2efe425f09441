"""The arguments of ``ftctl policy``."""

import argparse
import os
from collections.abc import Callable
from typing import Any

from ftcore.cli.ctl_futures import add_assume


def add_policy(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``policy`` and its subcommands.

    Args:
        commands: the subparsers of ``ftctl``.
        command: makes a command from subparsers, name, summary and examples.
    """
    policy = command(
        commands,
        "policy",
        "Write, check and explain policy files.",
        "ftctl policy init --preset mindio > policy.yaml\nftctl policy check policy.yaml\n"
        "ftctl policy explain policy.yaml --fault gpu-hw",
    )
    actions = policy.add_subparsers(dest="action", metavar="ACTION", required=True)
    init = command(
        actions,
        "init",
        "Print a policy file with every option, its value and its meaning.",
        "ftctl policy init > policy.yaml\nftctl policy init --preset spot > policy.yaml",
    )
    _add_preset(init, "preset to print; default: the chain of a job without a policy file")
    check = command(
        actions,
        "check",
        "Check a policy file; print every mistake with its line, and exit with 2 if ftrun would refuse the file.",
        "ftctl policy check policy.yaml\nftctl policy check policy.yaml --platform local:\n"
        "ftctl policy check policy.yaml --format json | jq '.problems[]'",
    )
    check.add_argument("file", metavar="FILE", help="policy file; - for standard input")
    explain = command(
        actions,
        "explain",
        "Print the chain for a fault class: which policies are asked, when each takes the incident or passes.",
        "ftctl policy explain policy.yaml --fault hang\n"
        "ftctl policy explain --preset mindio --fault gpu-hw --format json | jq '.chain[].policy'",
    )
    explain.add_argument("file", nargs="?", metavar="FILE", help="policy file; - for standard input")
    _add_preset(explain, "a preset instead of a file")
    fault = explain.add_argument(
        "--fault", required=True, metavar="CLASS", help="fault class: docs/reference/faults.md"
    )
    fault.completer = _complete_classes  # type: ignore[attr-defined]
    for parser in (check, explain):
        parser.add_argument(
            "--platform",
            metavar="URL",
            default=os.environ.get("FTCORE_PLATFORM", ""),
            help="platform that launches the job's nodes, as for ftrun (default: $FTCORE_PLATFORM, else none)",
        )
        add_assume(parser)
        parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    command(
        actions,
        "schema",
        "Print the JSON Schema of policy files, for editors.",
        "ftctl policy schema > policy.schema.json",
    )


def _add_preset(parser: argparse.ArgumentParser, text: str) -> None:
    option = parser.add_argument("--preset", metavar="NAME", help=text)
    option.completer = _complete_presets  # type: ignore[attr-defined]


def _complete_presets(prefix: str, **rest: object) -> list[str]:
    from ftcore.policies.file import presets

    return [name for name in presets.names() if name.startswith(prefix)]


def _complete_classes(prefix: str, **rest: object) -> list[str]:
    from ftcore.faults.taxonomy import FaultClass

    return [str(cls) for cls in FaultClass if cls.startswith(prefix)]
