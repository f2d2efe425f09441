"""The project's own files agree with each other."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

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
    """constraints.txt names an exact version of each requirement, torch 2.13.0 among them."""
    needed = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["torch"]
    groups = [name for group in PROJECT["dependency-groups"].values() for name in group]
    assert {normal(name) for name in needed + groups} <= set(pins())
    assert pins()["torch"] == "2.13.0"


def test_torch_is_an_extra_that_keeps_a_containers_build() -> None:
    """A login node installs none; a build such as 2.6.0a0+abc meets the extra, so an installer fetches no other."""
    assert not any(normal(name) == "torch" for name in PROJECT["project"]["dependencies"])
    [extra] = PROJECT["project"]["optional-dependencies"]["torch"]
    wanted = Requirement(extra).specifier
    assert all(wanted.contains(version) for version in ("2.6.0a0+gitabc", "2.6.0", "2.13.0+cpu"))
    assert not wanted.contains("2.5.1")


def test_readme_on_pypi_has_no_relative_link() -> None:
    """What the package index shows has no link, picture or drawing that needs the repository."""
    hook = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text()
    assert "](docs/" in text and "```mermaid" in text
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    assert "```mermaid" not in text
    assert [target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith("https://")] == []


def test_changelog_opens_with_this_version() -> None:
    """The newest section of the changelog is the package's version."""
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == ftcore.__version__


def test_public_names_are_as_committed() -> None:
    """What ``ftcore`` and its public modules export is exactly the committed list: a change of it is a decision."""
    modules = ("ftcore", "ftcore.data", "ftcore.logs", "ftcore.replay", "ftcore.worker")
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
