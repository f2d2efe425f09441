"""Workers of ``ftrun`` find what those of ``torchrun`` find: the whole environment, and what a process inherits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import ftrun

FLAGS = ("--standalone", "--nproc-per-node", "2", "--role", "trainer", "--max-restarts", "2")
ARGS = ("a", "--b=c")

DUMP = """
import json, os, resource, signal, sys
import torch
inherited = dict(
    argv=sys.argv[1:], name=__name__, path=sys.path, cwd=os.getcwd(), threads=torch.get_num_threads(),
    limits=[resource.getrlimit(kind) for kind in range(16)], nice=os.nice(0), umask=os.umask(0o22),
    mask=[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    signals={each.name: str(signal.getsignal(each)) for each in signal.Signals}, stdin=os.readlink("/proc/self/fd/0"),
)
with open(f"{os.environ['RANK']}.json", "w") as file:
    json.dump(dict(env=dict(os.environ), inherited=inherited), file)
"""

OURS = {
    *("FTCORE_AGENT", "FTCORE_PAGE_FD", "FTCORE_ROUNDS_FD"),
    *("FTCORE_KEEPER", "FTCORE_CHECKPOINTS", "FTCORE_ROUND", "FTCORE_LOCAL_RANK"),
}
"""Only ftcore sets these: its tag for the node's processes, the progress page, and what `ftcore.worker.join` needs."""

DIFFERENT = {
    "MASTER_ADDR": "127.0.0.1: a name need not resolve",
    "MASTER_PORT": "each round has a store of its own, at a port that the kernel chooses",
    "TORCHELASTIC_ERROR_FILE": "in the directory of the job's log files",
    "TORCHELASTIC_RUN_ID": "the job's name",
    "_": "the shell's word for the launcher",
}
"""Both launchers set these, each to its own value."""


def dumps(place: Path) -> list[dict[str, Any]]:
    """What the two workers found."""
    return [json.loads((place / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    "how", [pytest.param((), id="fork"), pytest.param(("--no-preload",), id="exec", marks=pytest.mark.long)]
)
def test_workers_find_what_torchruns_find(tmp_path: Path, how: tuple[str, ...]) -> None:
    """Both launchers are run for real, in the same directory and environment; all differences are listed above."""
    with ftrun(tmp_path) as job:
        (job.cwd / "dump.py").write_text(DUMP)
        job.env.pop("GRPC_VERBOSITY", None)  # ftcore sets it where it is imported, and keeps it from workers
        torchrun = [sys.executable, "-m", "torch.distributed.run", *FLAGS, "dump.py", *ARGS]
        subprocess.run(torchrun, cwd=job.cwd, env=job.env, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        theirs = dumps(job.cwd)
        run = job.start(*FLAGS, *how, preload=False, script="", args=("dump.py", *ARGS))
        assert run.end() == 0
        for got, want in zip(dumps(job.cwd), theirs, strict=True):
            assert got["inherited"] == want["inherited"]
            assert got["env"].keys() - want["env"].keys() == OURS
            assert want["env"].keys() - got["env"].keys() == set()
            differ = {name for name, value in want["env"].items() if got["env"][name] != value}
            assert differ - {"_"} == DIFFERENT.keys() - {"_"}
