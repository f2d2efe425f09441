"""Commands of ``ftctl`` from installed packages: entry points of the group ``ftcore.commands``, named as the command.

Each names a module with two functions: ``add_arguments(parser)`` adds arguments, or commands below it; the coroutine
``run(args)``, given the parsed arguments with ``store`` and ``job``, does it and returns the exit code. It may raise
``ftcore.errors.FtcoreError``, whose text is printed. Names come from the packages' metadata; a package is loaded only
if its command is given.
"""

import argparse
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ftcore.errors import UsageError
from ftcore.extensions import package_of

GROUP = "ftcore.commands"


def add_installed(commands: Any, argv: Sequence[str]) -> None:
    """Add the commands of installed packages to ``ftctl``'s parser; those of ftcore win.

    Args:
        commands: what ``add_subparsers`` returned.
        argv: the arguments; only commands among them are loaded.
    """
    for entry in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        if entry.name in commands.choices:
            continue
        package = package_of(entry)
        parser = commands.add_parser(entry.name, help=f"Commands of {package}.")
        if entry.name in argv:
            parser.set_defaults(installed=_loaded(entry, package, parser))


def _loaded(entry: EntryPoint, package: str, parser: Any) -> Any:
    """Its ``run``, or one that tells why it cannot be used."""
    try:
        module = entry.load()
        module.add_arguments(parser)
        return module.run
    except (Exception, SystemExit) as error:  # code of another package
        problem = f"the command {entry.name} of {package} cannot be used: {type(error).__name__}: {error}"
        parser.add_argument("rest", nargs=argparse.REMAINDER)

    async def refuse(args: argparse.Namespace) -> int:
        raise UsageError(problem)

    return refuse
