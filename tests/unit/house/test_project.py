"""The project's own files agree with each other."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import ftcore

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
API = Path(__file__).with_name("public_api.txt")


def normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~;\[ ]", requirement)[0]).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(version for _, _, version in found)
    return {normal(name): version for name, _, version in found}


def test_every_requirement_is_pinned() -> None:
    """constraints.txt names an exact version of each requirement, torch 2.13.0 among them; users may have torch 2.6."""
    needed = PROJECT["project"]["dependencies"]
    assert {normal(name) for name in needed + PROJECT["dependency-groups"]["dev"]} <= set(pins())
    assert pins()["torch"] == "2.13.0"
    assert "torch>=2.6" in needed


def test_changelog_opens_with_this_version() -> None:
    """The newest section of the changelog is the package's version."""
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == ftcore.__version__


def test_public_names_are_as_committed() -> None:
    """What ``ftcore`` and its public modules export is exactly the committed list: a change of it is a decision."""
    modules = ("ftcore", "ftcore.logs", "ftcore.replay", "ftcore.worker")
    code = (
        "import importlib\n"
        f"for module in {modules}:\n"
        "    loaded = importlib.import_module(module)\n"
        "    for name in sorted(getattr(loaded, '__all__', ['__version__'])):\n"
        "        getattr(loaded, name)\n"
        "        print(f'{module}.{name}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == API.read_text().splitlines()
