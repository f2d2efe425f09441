"""Subparsers of which one is built: a call of ``ftctl`` needs the arguments of its own command, not of all."""

from typing import Any


class OneCommand:
    """Stands for ``argparse``'s subparsers while commands are added.

    Args:
        commands: what ``add_subparsers`` returned.
        name: the command that is built; of all others, nothing is kept.
    """

    def __init__(self, commands: Any, name: str) -> None:
        self._commands, self._name = commands, name

    def add_parser(self, name: str, **settings: Any) -> Any:
        """The parser of the command, or a stand-in that accepts arguments and keeps none."""
        return self._commands.add_parser(name, **settings) if name == self._name else _Unused()


class _Unused:
    """A parser, group or argument that is not needed."""

    description = ""

    def __getattr__(self, name: str) -> Any:
        return self._more

    def _more(self, *args: Any, **settings: Any) -> "_Unused":
        return self
