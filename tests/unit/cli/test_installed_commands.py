"""What installed packages add to the command lines: flags of ``ftrun`` from a scheduler, commands of ``ftctl``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import install

LAUNCHERS, COMMANDS = "ftcore.launchers", "ftcore.commands"
SCHEDULER = """
def flags(env):
    if "ACME_NODES" not in env:
        return {}
    return {"nnodes": env["ACME_NODES"], "job": "acme-7"}
"""
COMMAND = """
def add_arguments(parser):
    parser.add_argument("--twice", action="store_true")

async def run(args):
    print(args.job, args.twice)
    return 4
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose ``site`` is where packages are found."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ACME_NODES", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("import os; print(os.environ['TORCHELASTIC_RUN_ID'])\n")
    return tmp_path


def launcher(here: Path, text: str = SCHEDULER) -> None:
    install(here / "site", "acme-scheduler", "1.2", {"acme.py": text}, {LAUNCHERS: {"acme": "acme:flags"}})


def run(program: str, *argv: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", f"ftcore.cli.{program}", *argv]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("flags", [(), ("--job", "mine"), ("--standalone",)], ids=["none", "named", "standalone"])
def test_a_scheduler_gives_flags_unless_the_command_line_does(here: Path, flags: tuple[str, ...]) -> None:
    """They are shown once; ``--standalone`` and ``--local-nodes`` are about this machine alone."""
    launcher(here)
    done = run("ftrun", "--no-preload", *flags, "script.py")
    assert done.returncode == 0, done.stderr
    shown = {(): "--nnodes 1 --job acme-7", ("--job", "mine"): "--nnodes 1"}.get(flags)
    lines = [line for line in done.stderr.splitlines() if "acme:" in line]
    assert lines == ([f"ftrun: from acme: {shown}"] if shown else [])
    name = done.stdout.strip()
    assert name == {(): "acme-7", ("--job", "mine"): "mine"}.get(flags, name) and (flags or name == "acme-7")


def test_elsewhere_a_scheduler_gives_none(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its variables are not there."""
    launcher(here)
    monkeypatch.delenv("ACME_NODES")
    done = run("ftrun", "--no-preload", "script.py")
    assert (done.returncode, "acme" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "from ftcore.errors import UsageError\ndef flags(env): raise UsageError('two tasks')",
            "ftrun: acme: two tasks\n",
        ),
        (
            "def flags(env): return 1 / 0",
            "ftrun: the launcher acme of acme-scheduler 1.2 cannot be used: ZeroDivisionError",
        ),
        ("def flags(env): return {'nods': 3}", "ftrun: --nods: no such flag"),
    ],
    ids=["refuses", "fails", "unknown"],
)
def test_a_scheduler_that_cannot_be_used_is_named(here: Path, text: str, message: str) -> None:
    """In one line, before anything starts."""
    launcher(here, text)
    done = run("ftrun", "script.py")
    assert done.returncode == 2 and done.stderr.startswith(message) and "Traceback" not in done.stderr


def test_a_package_has_a_command(here: Path) -> None:
    """It is listed, gets the options before it, and is loaded only if it is given; those of ftcore win."""
    names = {"acme": "command", "status": "command", "broken": "missing"}
    install(here / "site", "acme-tools", "3.1", {"command.py": COMMAND}, {COMMANDS: names})
    assert "Commands of acme-tools 3.1." in run("ftctl", "--help").stdout
    done = run("ftctl", "--job", "mine", "acme", "--twice")
    assert (done.returncode, done.stdout) == (4, "mine True\n")
    assert run("ftctl", "status", "--twice").returncode == 2
    done = run("ftctl", "broken")
    assert done.returncode == 2
    assert done.stderr.startswith("ftctl: the command broken of acme-tools 3.1 cannot be used: ModuleNotFoundError")
