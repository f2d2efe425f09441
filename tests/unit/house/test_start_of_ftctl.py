"""What ``ftctl`` imports: most of its start is imports. ``benchmarks/reading.py`` measures times."""

import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.cli.ctl_parser import LOSS_LIMIT
from ftcore.cli.ftctl import _READERS
from ftcore.faults.detectors import loss
from ftcore.ids import JobName
from ftcore.logs.archive import ArchiveWriter
from ftcore.testing.driver import JobDriver

ROOT = Path(__file__).parents[3]

PARSING = {
    "ftcore",
    "ftcore.cli",
    "ftcore.cli.ctl_chronicle_parser",
    "ftcore.cli.ctl_futures",
    "ftcore.cli.ctl_import_parser",
    "ftcore.cli.ctl_installed",
    "ftcore.cli.ctl_one_command",
    "ftcore.cli.ctl_parser",
    "ftcore.cli.ctl_policy_parser",
    "ftcore.cli.ctl_replay_parser",
    "ftcore.cli.ctl_top_parser",
    "ftcore.cli.ctl_types",
    "ftcore.errors",
    "ftcore.extensions",
    "ftcore.ids",
    "ftcore.policies",
    "ftcore.policies.file",
    "ftcore.policies.file.durations",
    "ftcore.replay",
    "ftcore.replay.bounds",
    "ftcore.version",
}
"""All of ftcore that parses the command line and prints its help."""

OUTSIDE = {
    "argcomplete",
    "asyncio",
    "attr",
    "google",
    "grpc",
    "msgspec",
    "rich",
    "sqlite3",
    "structlog",
    "torch",
    "yaml",
}
"""Packages that cost milliseconds; a command names those that it needs."""

WITHOUT_A_LOG = ("completion", "machines", "classify", "spikes")

DECIDING = ("ftcore.engine", "ftcore.faults.classify", "ftcore.policies.builtin", "ftcore.policies.chain", "ftcore.sim")
"""Parts of ftcore that decide, which commands that show what is in the log do not need."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with the log of a job that had a fault."""
    driver = JobDriver(nodes=2, slots=2)
    driver.start()
    driver.make_steps(3)
    driver.fail("node1", exitcode=-9, message="RuntimeError: lost")
    driver.settle()
    path = tmp_path_factory.mktemp("start") / "demo.ftlog"
    with ArchiveWriter(path, JobName("demo")) as writer:
        for event in driver.events:
            writer.add(event)
    return f"file:{path}"


def imported(*argv: str, code: int = 0) -> set[str]:
    """The modules that a command has imported when it ends."""
    report = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr));"
        "from ftcore.cli.ftctl import main; sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", report, *argv], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == code, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "ftcore"}


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["--help"], 0), (["--version"], 0), (["events", "--help"], 0), (["policy", "explain", "--help"], 0), (["x"], 2)],
)
def test_help_imports_what_parses(argv: list[str], code: int) -> None:
    """Neither an event, nor a store, nor asyncio."""
    modules = imported(*argv, code=code)
    assert own(modules) - {"ftcore.cli.ftctl"} <= PARSING
    assert modules & OUTSIDE == set()


def test_completion_imports_its_library_alone() -> None:
    """The script for the shell."""
    modules = imported("completion", "bash")
    assert own(modules) - {"ftcore.cli.ftctl", "ftcore.cli.ctl_completion"} <= PARSING
    assert modules & OUTSIDE == {"argcomplete"}


@pytest.mark.parametrize(
    "argv", [("events",), ("events", "--since", "5", "--type", "worker.*")], ids=["all", "selected"]
)
def test_events_imports_no_state(store: str, argv: tuple[str, ...]) -> None:
    """Events are shown as they are in the log: nothing is folded, classified or decided. The newest revision of the
    decision rules is known. A file is read without asyncio."""
    modules = imported("--store", store, *argv)
    assert modules & OUTSIDE == {"msgspec"}
    assert {name for name in own(modules) if name.startswith("ftcore.ports")} == {"ftcore.ports", "ftcore.ports.log"}
    states = {name for name in modules if name.startswith("ftcore.states")}
    assert states == {"ftcore.states", "ftcore.states.revisions", "ftcore.states.unknown"}
    assert [name for name in modules if name.startswith((*DECIDING, "ftcore.runtime"))] == []


@pytest.mark.parametrize("command", sorted(_READERS - {"report", *WITHOUT_A_LOG}))
def test_a_command_that_reads_never_decides(store: str, command: str) -> None:
    """No turn of the engine and no process of the runtime. Logging is not configured for these commands, so structlog,
    which would write warnings to standard output, must not be there."""
    modules = imported("--store", store, command)
    assert modules & OUTSIDE <= {"asyncio", "attr", "msgspec", "rich", "yaml"}
    assert [name for name in modules if name.startswith(("ftcore.engine.decide", "ftcore.runtime"))] == []


def test_other_readers_need_no_logging() -> None:
    """The rest of the list, and the SQLite store."""
    names = ", ".join(f"ftcore.cli.ctl_{command}" for command in ("report", *WITHOUT_A_LOG))
    code = f"import sys, ftcore.logs.sqlite, {names}"
    done = subprocess.run([sys.executable, "-c", f"{code}; sys.exit('structlog' in sys.modules)"], check=False)
    assert done.returncode == 0


def test_the_limit_of_the_parser_is_that_of_the_detector() -> None:
    """The parser must not import the detectors."""
    assert loss.LIMIT == LOSS_LIMIT
