"""Flags about nodes that cannot mean anything are refused, with what was expected."""

import sys
from pathlib import Path
from subprocess import run

import pytest

SCRIPT = str(Path(__file__))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--local-nodes", "2", "--platform", "local:?preempt=node7@20s"),
            "preempt=node7@...: no such node; expected one of node0",
        ),
        (
            ("--local-nodes", "2", "--platform", "local:?maintain=node7@20s/1m"),
            "maintain=node7@...: no such node; expected one of node0",
        ),
        (("--order-by", "switch=s1"), "expected the name of one label, such as switch"),
        (("--leave-within", "3s"), "expected more than 4 s"),
    ],
)
def test_refused(flags: tuple[str, ...], said: str) -> None:
    """With exit code 2, before anything is started."""
    found = run([sys.executable, "-m", "ftcore.cli.ftrun", *flags, SCRIPT], capture_output=True, text=True)
    assert found.returncode == 2
    assert said in found.stderr
