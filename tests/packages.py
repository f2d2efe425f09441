"""Installs packages with entry points into a folder, without the network: what an installer would leave there."""

import shutil
import tomllib
from pathlib import Path

TAKE = 'return Take(plan=PlanKind.RESTART, reason="odd enough", grace_s=1.0, wait_s=options.rest)'

_ODD = """
import os, subprocess, sys, time
from pathlib import Path
from typing import Annotated
from ftcore.events.policy import Terms
from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.policies.options import Options, span

class OddOptions(Options):
    rest: Annotated[float, span("How long is waited.")] = 0.5

class Odd:
    name = "acme_odd"
    doc = "Does what the test says."
    conditions = ("does what the test says",)
    kinds = ("fault",)
    needs = ()
    options = OddOptions

    def considers(self, incident, job, options):
        with Path("asked").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        BODY
"""

EXAMPLE = Path(__file__).parents[1] / "examples/policy"


def install(site: Path, name: str, version: str, modules: dict[str, str], entries: dict[str, dict[str, str]]) -> Path:
    """Put modules and their metadata where ``PYTHONPATH`` finds them; returns the folder.

    Args:
        site: the folder; made if need be.
        name, version: of the distribution.
        modules: text by file name.
        entries: entry points: object by name, by group.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    for file, text in modules.items():
        (site / file).write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) for group, found in entries.items())
    (info / "entry_points.txt").write_text("\n".join(groups))
    return site


def install_example(site: Path) -> Path:
    """Install ``examples/policy`` as its ``pyproject.toml`` describes it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copytree(EXAMPLE / "src", site, dirs_exist_ok=True)
    return install(site, project["name"], project["version"], {}, project["entry-points"])


def odd(root: Path, body: str) -> Path:
    """A package ``acme-odd`` whose policy ``acme_odd`` does this when it is asked; returns its folder.

    It writes the process that it was asked in into the file ``asked`` of the working directory.
    """
    entries = {"ftcore.policies": {"acme_odd": "acme_odd:Odd"}}
    return install(root / "site", "acme-odd", "2.1", {"acme_odd.py": _ODD.replace("BODY", body)}, entries)
