"""A Python without PyTorch, as on a login node: played by one in which torch cannot be imported."""

import subprocess
import sys
from pathlib import Path

import pytest

_BLOCKED = """
import sys
sys.modules["torch"] = None
sys.argv = ["PROGRAM", *sys.argv[1:]]
"""


def without_torch(program: str, entry: str, *argv: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    code = _BLOCKED.replace("PROGRAM", program) + entry
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, cwd=cwd)


@pytest.mark.parametrize("flags", [["--standalone"], ["--local-nodes", "2"], ["--role", "agent"]])
def test_ftrun_says_what_is_missing(flags, tmp_path):
    """One line with the interpreter and the remedy, exit 2, and nothing is left behind."""
    entry = "from ftcore.cli.ftrun import run; run()"
    done = without_torch("ftrun", entry, *flags, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"PyTorch is not installed in {sys.executable}" in done.stderr
    assert "pip install 'ftcore[torch]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ftctl_needs_none(tmp_path):
    """Policies are checked, futures simulated, their logs read and priced."""
    (tmp_path / "policy.yaml").write_text("version: 1\nchain: [process_restart, stop]\n")
    (tmp_path / "x.log").write_text("ModuleNotFoundError: No module named 'x'\n")
    simulated = ["simulate", "--nodes", "4", "--days", "5", "--rate", "1", "--log", "x.ftlog", "--plot", "x.svg"]
    reading = (["events"], ["incidents"], ["explain"], ["replay", "--verify"], ["whatif", "--policy", "policy.yaml"])
    entry = "from ftcore.cli.ftctl import main; sys.exit(main())"
    for argv in (
        ["policy", "explain", "policy.yaml", "--fault", "hang"],
        ["classify", "x.log"],
        simulated,
        *(["--store", "file:x.ftlog", *command] for command in reading),
    ):
        done = without_torch("ftctl", entry, *argv, cwd=tmp_path)
        assert done.returncode == 0, (argv, done.stderr)
