"""What importing ftcore costs, and that the contracts on imports would notice an offence."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*argv: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *argv], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "module",
    [
        "ftcore",
        "ftcore.cli.ftrun_job",
        "ftcore.cli.ftctl",
        "ftcore.cli.master",
        "ftcore.runtime.agent.agent",
        "ftcore.runtime.agent.workers.supervisor",
        "ftcore.worker",
        "ftcore.testing.driver",
    ],
)
def test_import_loads_no_torch(module: str) -> None:
    """Importing a launcher, a reader or the worker's side never imports torch or numpy."""
    code = f"import sys, {module}; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    done = run("-c", code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("module", ["ftcore.cli.ftrun_job", "ftcore.cli.master", "ftcore.rdzv_etcd.sidecar"])
def test_what_stays_beside_the_workers_loads_no_rich(module: str) -> None:
    """Tables and colours are for those who read: an agent or a master carries none, and rich can be imported after."""
    code = f"import sys, {module}; print([n for n in ('rich', 'pygments') if n in sys.modules]); import rich.console"
    done = run("-c", code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_import_of_the_package_is_cheap() -> None:
    """``import ftcore`` loads neither gRPC nor the runtime."""
    done = run("-c", "import sys, ftcore; print(sorted({'grpc', 'ftcore.runtime', 'asyncio'} & set(sys.modules)))")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("module", ["ftcore.cli.ctl_simulate", "ftcore.cli.ctl_whatif", "ftcore.testing.driver"])
def test_what_keeps_to_the_engine_loads_no_runtime(module: str) -> None:
    """Campaigns, what-if and made-up jobs load neither gRPC, nor the runtime, nor the protocol simulator."""
    heavy = "{'grpc', 'ftcore.runtime', 'ftcore.sim.protocol'}"
    done = run("-c", f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("file", "line", "broken"),
    [
        ("states/model.py", "import time", "The pure layers"),
        ("policies/builtin/stop.py", "from ftcore.engine import decide", "Layers"),
        ("events/job.py", "from ftcore.states import model", "Layers"),
        ("runtime/master/master.py", "import torch", "Only the warm process"),
        ("rdzv_etcd/supervisor.py", "import torch", "Only the warm process"),
        ("runtime/agent/agent.py", "from ftcore.runtime.master import master", "Agent and master"),
        ("runtime/agent/workers/guard.py", "from ftcore.runtime.agent.link import link", "In the agent"),
        ("policies/builtin/stop.py", "from ftcore.policies.file import values", "The chain and its policies"),
        ("engine/decide.py", "import ftcore.etcd3", "Only the etcd adapter"),
        ("engine/turn.py", "if False:\n    from ftcore.engine import decide", "No modules import each other"),
        ("sim/campaign/simulate.py", "from ftcore.sim.protocol import simulation", "Campaigns and what-if"),
        ("sim/responder.py", "import random", "The pure layers"),
        ("launch/paths.py", "from ftcore.cli import options", "Layers"),
        ("extra/__init__.py", "", "Layers"),
    ],
)
def test_contract_notices_an_offence(tmp_path: Path, file: str, line: str, broken: str) -> None:
    """Each contract on imports breaks when a line that it forbids is added."""
    shutil.copytree(ROOT / "ftcore", tmp_path / "ftcore", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    path = tmp_path / "ftcore" / file
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as source:
        source.write(f"\n{line}\n")
    code = (
        "import sys; from importlinter.cli import lint_imports_command; sys.path.insert(0, '.'); lint_imports_command()"
    )
    done = run("-c", code, "--no-cache", "--no-logo", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert broken in done.stdout.partition("Broken contracts")[2], done.stdout
