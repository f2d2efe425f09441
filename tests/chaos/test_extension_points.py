"""Packages that extend ftcore by entry points: each kind is used, and a broken one stops no healthy job."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

import ftcore

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[2] / "docs"))
from extension_points import PACKAGE, POINTS
from packages import install

PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
ENTRIES: dict[str, dict[str, str]] = PROJECT["entry-points"]
CHAIN = "version: 1\njob: {health: HEALTH}\nchain:\n  - acme_rest: {rest: 100ms}\n  - process_restart\n  - stop\n"
HOT = """
import os, sys, time
from pathlib import Path
print("acme: inlet at 44 C", file=sys.stderr, flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while Path("hold").exists():
        time.sleep(0.01)
    sys.exit(9)
"""


class Site:
    """A working directory with a place for packages."""

    def __init__(self, root: Path) -> None:
        self.root, self.packages = root, root / "site"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(("FTCORE_", "ACME_"))}
        self.env |= {"PYTHONPATH": f"{self.packages}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")}
        self.env |= {"XDG_STATE_HOME": str(root / "state")}
        (root / "hot.py").write_text(HOT)
        (root / "chain.yaml").write_text(CHAIN.replace("HEALTH", "never"))

    def install(self, broken: Mapping[str, str] | None = None) -> None:
        """Install the example; ``broken``: texts of modules instead of its own."""
        shutil.copytree(PACKAGE / "src", self.packages)
        for module, text in (broken or {}).items():
            (self.packages / "acme_extensions" / f"{module}.py").write_text(text)
        install(self.packages, PROJECT["name"], PROJECT["version"], {}, ENTRIES)

    def start(self, program: str, *argv: str, **env: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", f"ftcore.cli.{program}", *argv]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.root, env=self.env | env, stdout=pipe, stderr=pipe, text=True)

    def run(self, program: str, *argv: str, **env: str) -> tuple[int, str, str]:
        process = self.start(program, *argv, **env)
        out, err = process.communicate(timeout=90)
        assert "Traceback" not in err, err
        return process.returncode, out, err

    def events(self, job: str) -> list[ftcore.Event]:
        async def read() -> list[ftcore.Event]:
            log = await ftcore.open_log(f"sqlite://{self.root}/state/ftcore", job)
            try:
                return [event async for event in log.read()]
            finally:
                await log.close()

        return asyncio.run(read())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_every_group_of_the_code_is_on_the_page_and_in_the_package() -> None:
    """A new group needs a row of ``docs/extension_points.py``, and an entry point of ``examples/extensions``."""
    found = set()
    for path in Path(ftcore.__file__).parent.rglob("*.py"):
        found |= set(re.findall(r'^\w*GROUP(?:: Final)? = "([\w.]+)"', path.read_text(), re.MULTILINE))
    assert found == {each.group for each in POINTS} == set(ENTRIES)


def test_one_package_extends_everything(site: Site) -> None:
    """Flags, platform, observer, check, rule and policy are used by one job; command and export read its log."""
    site.install()
    (site.root / "chain.yaml").write_text(CHAIN.replace("HEALTH", "always"))
    (site.root / "sensor").write_text("23.5")
    argv = ("--policy", "chain.yaml", "--platform", "acme:2", "--observe", "acme:heat.txt", "--no-preload", "hot.py")
    code, _, err = site.run("ftrun", *argv, ACME_JOB="heat", ACME_WORKERS="1", ACME_SENSOR=str(site.root / "sensor"))
    assert code == 0, err
    assert "ftrun: from acme: --job heat --nproc-per-node 1\n" in err
    events = site.events("heat")
    results = [result for event in events if event.type == "health.checked" for result in event.data.results]
    [inlet] = {result.name: result for result in results if result.name == "acme-inlet"}.values()
    assert (inlet.verdict, inlet.detail) == ("passed", "inlet at 23.5 C")
    assert any(event.type == "ability.declared" and "replace" in event.data.abilities for event in events)
    taken = [event.data for event in events if event.type == "policy.considered" and event.data.verdict == "take"]
    assert [(data.policy, data.reason) for data in taken] == [("acme_rest", "overheated")]
    opened = next(event for event in events if event.type == "incident.opened")
    assert opened.data.fault.detail == "too-hot"
    assert site.run("ftctl", "--job", "heat", "acme")[:2] == (0, "heat: too hot 1 times\n")
    assert site.run("ftctl", "--job", "heat", "export", "--format", "acme", "-o", "heat.jsonl")[0] == 0
    assert len((site.root / "heat.jsonl").read_text().splitlines()) == len(events)
    found = site.root / "heat.txt"
    while not found.exists() or not found.read_text():  # the master's process outlives ftrun by seconds
        time.sleep(0.05)
    assert found.read_text() == f"heat: event {opened.seq}: too hot\n"


RAISES, ENDS = "import no_such_module\n", "raise SystemExit(0)\n"
PACKAGE_NAME = "acme-extensions 1.0"
MISSING = "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize(
    ("module", "text", "command", "message"),
    [
        ("policy", RAISES, ("ftrun", "--policy", "chain.yaml", "hot.py"), f"it cannot be loaded: {MISSING}"),
        ("policy", "Rest = 5\n", ("ftrun", "--policy", "chain.yaml", "hot.py"), "acme_rest"),
        ("rules", RAISES, ("ftrun", "hot.py"), f"ftrun: the rules acme of {PACKAGE_NAME}: they cannot be loaded"),
        ("rules", "RULES = 5\n", ("ftrun", "hot.py"), "found int, expected a list of rules"),
        ("platform", RAISES, ("ftrun", "--platform", "acme:2", "hot.py"), f"acme: of {PACKAGE_NAME} cannot be used"),
        ("platform", ENDS, ("ftrun", "--platform", "acme:2", "hot.py"), f"acme: of {PACKAGE_NAME} cannot be used"),
        (
            "platform",
            "ADAPTER = 5\n",
            ("ftrun", "--platform", "acme:2", "hot.py"),
            "is not of the type PlatformAdapter",
        ),
        ("observer", RAISES, ("ftrun", "--observe", "acme:x", "hot.py"), f"acme: of {PACKAGE_NAME} cannot be used"),
        ("observer", "ADAPTER = 5\n", ("ftrun", "--observe", "acme:x", "hot.py"), "is not of the type"),
        ("export", ENDS, ("ftctl", "export", "--format", "acme", "-o", "x"), f"acme of {PACKAGE_NAME} cannot be used"),
        (
            "export",
            "FORMAT = 5\n",
            ("ftctl", "export", "--format", "acme", "-o", "x"),
            "is not of the type",
        ),
        ("launcher", RAISES, ("ftrun", "hot.py"), f"ftrun: the launcher acme of {PACKAGE_NAME} cannot be used"),
        ("launcher", ENDS, ("ftrun", "hot.py"), f"ftrun: the launcher acme of {PACKAGE_NAME} cannot be used"),
        ("launcher", "def flags(env): return [1]\n", ("ftrun", "hot.py"), "returned list, expected a mapping of flags"),
        ("command", RAISES, ("ftctl", "acme"), f"ftctl: the command acme of {PACKAGE_NAME} cannot be used: {MISSING}"),
        ("command", ENDS, ("ftctl", "acme"), f"ftctl: the command acme of {PACKAGE_NAME} cannot be used: SystemExit"),
        ("command", "run = 5\n", ("ftctl", "acme"), "has no attribute 'add_arguments'"),
    ],
)
def test_what_is_needed_and_broken_is_refused(
    site: Site, module: str, text: str, command: tuple[str, ...], message: str
) -> None:
    """Before anything starts, in one line with the package and the error."""
    site.install({module: text})
    code, out, err = site.run(*command)
    assert (code, out) == (2, ""), err
    assert message in err
    assert len(err.strip().splitlines()) == 1 or "chain.yaml" in err


@pytest.mark.parametrize(("text", "health"), [(RAISES, "always"), (ENDS, "never")], ids=["raises", "ends"])
def test_what_is_broken_and_not_needed_stops_no_job(site: Site, text: str, health: str) -> None:
    """A policy that no file names, a check, a platform that is not asked for, a launcher and a command of others."""
    modules = ("policy", "check", "platform", "observer", "export", "launcher", "command")
    site.install(dict.fromkeys(modules, text))
    (site.root / "chain.yaml").write_text(f"version: 1\njob: {{health: {health}}}\nchain: [process_restart, stop]\n")
    argv = ("--standalone", "--job", "well", "--policy", "chain.yaml", "--no-preload", "hot.py")
    code, _, err = site.run("ftrun", *argv)
    assert code == 0, err
    results = [each for event in site.events("well") if event.type == "health.checked" for each in event.data.results]
    verdicts = {each.verdict for each in results if each.name == "acme-inlet"}
    assert verdicts == ({"unavailable"} if health == "always" else set())
    assert site.run("ftctl", "--job", "well", "status")[0] == 0


def test_what_breaks_while_a_job_runs_does_not_stop_it(site: Site) -> None:
    """The package is damaged after the start: its policy counts as a pass, and the next one restarts the workers."""
    site.install()
    (site.root / "hold").touch()
    argv = (
        "--standalone",
        "--job",
        "damaged",
        "--policy",
        "chain.yaml",
        "--platform",
        "acme:2",
        "--no-preload",
        "hot.py",
    )
    process = site.start("ftrun", *argv)
    assert process.stderr is not None
    for line in process.stderr:
        if "acme: inlet" in line:
            break
    for path in (site.packages / "acme_extensions").glob("*.py"):
        path.write_text(RAISES)
    (site.root / "hold").unlink()
    _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    events = site.events("damaged")
    [faulted] = [event.data for event in events if event.type == "policy.faulted"]
    assert (faulted.policy, MISSING in faulted.error) == ("acme_rest", True)
    taken = [
        event.data.policy for event in events if event.type == "policy.considered" and event.data.verdict == "take"
    ]
    assert taken == ["process_restart"]
