"""A call of ``ftctl`` prepares the arguments of its own command alone; help, typos and completions know all."""

from argparse import ArgumentParser
from typing import Any

import pytest

from ftcore.cli.ctl_parser import build_parser

ALL = {**build_parser("1")._subparsers._group_actions[0].choices}  # type: ignore[union-attr, dict-item]


def prepared(*argv: str) -> dict[str, Any]:
    """The commands of the parser for these arguments."""
    return dict(build_parser("1", argv)._subparsers._group_actions[0].choices)  # type: ignore[union-attr, arg-type]


def described(parser: ArgumentParser) -> tuple[str, list[str]]:
    return parser.format_help(), [repr(action) for action in parser._actions]


@pytest.mark.parametrize("name", ALL)
def test_a_command_alone_is_as_among_all(name: str) -> None:
    """The same help, arguments and defaults; options before it change nothing."""
    (found,) = prepared(name, "--help").values()
    assert described(found) == described(ALL[name])
    assert set(prepared("--store", "file:x", "--job", "events", name)) == {name}


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h", "events"], ["evnts"], ["--job", "events"], ["--other", "x"]])
def test_without_a_known_command_there_are_all(argv: list[str]) -> None:
    """For the help of ftctl, and to name the nearest one."""
    assert set(prepared(*argv)) >= set(ALL)


def test_the_version_needs_none() -> None:
    """Only alone: with a command, that one is there."""
    assert prepared("--version") == {}


def test_a_completion_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after a whole word: another may begin with it."""
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setenv("COMP_LINE", "ftctl events")
    assert set(prepared()) >= set(ALL)
