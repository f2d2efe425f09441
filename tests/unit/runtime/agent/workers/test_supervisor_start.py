"""Starting: refusals before the start, the use of fresh interpreters, and a worker's environment."""

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from supervisor_harness import Node

from ftcore.errors import UsageError
from ftcore.runtime.agent.workers import processes

REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "script-missing": (("none.py",), {}, "script none.py not found"),
    "script-is-directory": (("folder",), {}, "is a directory without __main__.py"),
    "module-missing": (("no_such_module",), {"module": True}, "module no_such_module not found"),
    "submodule-missing": (("package.none",), {"module": True}, "there is no package.none"),
    "not-a-package": (("script.deeper",), {"module": True}, "script is a module, not a package"),
    "package-without-main": (("package",), {"module": True}, "package without a __main__ module"),
    "program-missing": (("./none.sh",), {"no_python": True}, "program ./none.sh not found"),
    "program-not-in-path": (("no-such-program-at-all",), {"no_python": True}, "not found in PATH"),
    "program-not-executable": (("script.py",), {"no_python": True}, "not found in PATH"),
    "file-not-executable": (("./script.py",), {"no_python": True}, "is not executable; chmod \\+x it"),
    "program-is-directory": (("./folder",), {"no_python": True}, "is a directory"),
    "directory-missing": (("script.py",), {"cwd": "/no/such/directory"}, "working directory /no/such/directory"),
    "nothing": ((), {}, "nothing to run"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused(root: Node, name: str) -> None:
    """One message has the reason, and no worker was started."""
    root.script("")
    (root.root / "folder").mkdir()
    (root.root / "package").mkdir()
    root.script("raise SystemError('imported')", "package/__init__.py")
    argv, changes, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        root.run(root.supervisor.start(root.launch(*argv, **changes)))
    assert root.run(root.supervisor.stop(0.0)) == ()


PRINT = "import sys; print(sys.argv[1:], sys.stdout.write_through, 'ftcore.runtime.warm.serve' in sys.modules)"


def test_a_program_is_executed(root: Node) -> None:
    """``--no-python`` runs a program with its arguments, environment and the progress page."""
    path = root.root / "program.sh"
    path.write_text('#!/bin/sh\necho "$1" "$RANK" "$PWD"; readlink /proc/self/fd/$FTCORE_PAGE_FD; exit 6\n')
    path.chmod(stat.S_IRWXU)
    ended = root.run(root.ended(root.launch("./program.sh", "x y", no_python=True)))
    assert ended.codes == (6,)
    assert ended.how == "exec: --no-python"
    assert ended.stdout == f"x y 0 {root.root}\n/memfd:ftcore-page (deleted)\n"


def test_a_program_that_the_kernel_refuses(root: Node) -> None:
    """An executable file that is not a program ends its worker with 126 and a message."""
    path = root.root / "broken"
    path.write_bytes(b"\x7fELF")
    path.chmod(stat.S_IRWXU)
    ended = root.run(root.ended(root.launch("./broken", no_python=True)))
    assert ended.codes == (126,)
    assert "cannot run ./broken: Exec format error" in ended.stderr


FRESH: dict[str, tuple[dict[str, str], str]] = {
    "load-time-variable": ({"LD_BIND_NOW": "1"}, "exec: LD_BIND_NOW differs"),
    "python-variable": ({"PYTHONHASHSEED": "7"}, "exec: PYTHONHASHSEED differs"),
    "torch-variable": ({"TORCH_LOGS": "+dynamo"}, "exec: TORCH_LOGS differs"),
    "threads-of-a-library": ({"MKL_NUM_THREADS": "3"}, "exec: MKL_NUM_THREADS differs"),
    "another-python": ({"PYTHON_EXEC": sys.executable}, "exec: PYTHON_EXEC is set"),
}


@pytest.mark.parametrize("name", FRESH)
def test_a_fork_that_would_not_equal_a_fresh_start_is_none(root: Node, name: str) -> None:
    """A variable read at load time makes the worker a fresh interpreter, and the reason is reported."""
    env, how = FRESH[name]
    ended = root.run(root.ended(root.launch(root.script(PRINT), "a", env=env)))
    assert ended.how.startswith(how)
    assert (ended.codes, ended.stdout) == ((0,), "['a'] True False\n")


def test_launcher_variables_do_not_prevent_a_fork(root: Node) -> None:
    """Variables that torchrun sets per worker, or that are read late, are not compared."""
    env = {"TORCHELASTIC_RUN_ID": "x", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "1", "ANY": "thing"}
    assert root.run(root.ended(root.launch(root.script(PRINT), env=env))).how == "fork"


def test_a_neighbour_that_hides_a_loaded_module(root: Node) -> None:
    """A module in the script's directory has precedence, as in plain python."""
    root.script("print('the neighbour')", "attrs.py")
    root.script("print('the neighbour')", "ctypes.py")
    ended = root.run(root.ended(root.launch(root.script("import ctypes"))))
    assert "ctypes.py shadows the preloaded module" in ended.how
    assert ended.stdout == "the neighbour\n"


def test_a_directory_and_an_archive_run_as_python_runs_them(root: Node) -> None:
    """Scripts that are not source files run in a fresh interpreter."""
    (root.root / "folder").mkdir()
    root.script("print('main')", "folder/__main__.py")
    ended = root.run(root.ended(root.launch("folder")))
    assert (ended.how, ended.stdout) == ("exec: the script is a directory", "main\n")


def test_each_worker_has_its_own_environment_and_session(root: Node) -> None:
    """Workers of a launch have their own environment and session, and no pipes of others."""
    source = (
        "import json, os\n"
        "fds = sorted(int(f) for f in os.listdir('/proc/self/fd'))\n"
        "print(json.dumps([dict(os.environ), os.getsid(0) == os.getpid(), len(fds)]))"
    )
    launch = root.launch(root.script(source), workers=3)
    root.run(root.ended(launch))
    for rank in range(3):
        env, leads, fds = json.loads((Path(launch.log_dirs[rank]) / "stdout.log").read_text())
        ours = {"FTCORE_AGENT", "FTCORE_PAGE_FD", "FTCORE_ROUNDS_FD", "TORCHELASTIC_ERROR_FILE"}
        assert {k: v for k, v in env.items() if k not in ours} == launch.envs[rank]
        assert env.keys() >= ours
        assert leads
        assert fds == 7  # three streams, page, file for stacks, channel, the directory being listed


def test_many_workers_start_at_once(root: Node) -> None:
    """More workers than the descriptor limit of one message."""
    ended = root.run(root.ended(root.launch(root.script("pass"), workers=70)))
    assert ended.codes == (0,) * 70


def test_twenty_restarts_leave_nothing_behind(root: Node) -> None:
    """Every worker ends by the signal; descriptors and processes do not accumulate."""
    script = root.script("import time; print('up'); time.sleep(600)")

    async def restart() -> None:
        launch = root.launch(script, workers=2)
        await root.supervisor.start(launch)
        await root.says(launch, "up")
        await root.says(launch, "up", 1)
        assert await root.supervisor.stop(30.0) == (-15, -15)

    root.run(restart())
    files = len(list(Path("/proc/self/fd").iterdir()))
    own = len(processes.children(os.getpid()))
    for _ in range(20):
        root.run(restart())
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 8  # parked workers come and go
    assert len(processes.children(os.getpid())) <= own + 2
