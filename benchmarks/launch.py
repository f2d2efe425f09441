"""Launches a script under ftrun or torchrun, and reads the marks that its workers write."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

BIN = Path(sys.executable).parent
SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "step.py"
LOST_S = 60.0
"""Seconds after which a launcher that has not restored all ranks has lost the job."""


@attrs.frozen
class Mark:
    """One mark of a worker."""

    what: str
    rank: int
    pid: int
    mono: int


@attrs.define
class Job:
    """A running job.

    Args:
        processes: the launcher's processes; one per node for torchrun.
        marks_file: file that the workers write.
        ranks: number of ranks.
        started: monotonic nanoseconds of the command.
        home: ftrun's state directory.
        name: the job's name under ftrun.
    """

    processes: list[subprocess.Popen[bytes]]
    marks_file: Path
    ranks: int
    started: int
    home: Path
    name: str

    def marks(self) -> list[Mark]:
        """Return all marks so far."""
        return read_marks(self.marks_file)

    def await_all(self, what: str, after: int, not_pids: set[int]) -> dict[int, Mark] | None:
        """Wait for the first such mark of every rank after a time, by new processes; None: the job is lost."""
        deadline = time.monotonic() + LOST_S
        while time.monotonic() < deadline:
            found: dict[int, Mark] = {}
            for mark in self.marks():
                if mark.what == what and mark.mono > after and mark.pid not in not_pids:
                    found.setdefault(mark.rank, mark)
            if len(found) == self.ranks:
                return found
            if any(process.poll() is not None for process in self.processes):
                return None
            time.sleep(0.002)
        return None

    def await_one(self, what: str, after: int) -> Mark | None:
        """Wait for the first such mark of any rank after a time; None: the job is lost."""
        deadline = time.monotonic() + LOST_S
        while time.monotonic() < deadline and all(process.poll() is None for process in self.processes):
            for mark in self.marks():
                if mark.what == what and mark.mono > after:
                    return mark
            time.sleep(0.002)
        return None


def read_marks(path: Path) -> list[Mark]:
    """Return all marks in a file so far."""
    text = path.read_text() if path.exists() else ""
    fields = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())  # the last one may be incomplete
    return [Mark(what, int(rank), int(pid), int(mono)) for what, rank, pid, mono in fields]


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def commands(
    launcher: str, nodes: int, workers: int, name: str, options: list[str], script: list[str]
) -> list[list[str]]:
    """Return the command lines of a job: one for ftrun, one per node for torchrun."""
    if launcher == "ftrun":
        world = ["--local-nodes", str(nodes)] if nodes > 1 else ["--standalone"]
        count = ["--nproc-per-node", str(workers), "--max-restarts", "1000"]
        return [[str(BIN / "ftrun"), "--job", name, *world, *count, *options, *script]]
    count = ["--nproc-per-node", str(workers), "--max-restarts", "1000"]
    if nodes == 1:
        return [[str(BIN / "torchrun"), "--standalone", *count, *script]]
    endpoint = f"127.0.0.1:{free_port()}"
    world = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", name]
    return [[str(BIN / "torchrun"), *world, *count, *script] for _ in range(nodes)]


@contextlib.contextmanager
def launched(
    launcher: str,
    nodes: int,
    workers: int,
    options: list[str] | None = None,
    args: list[str] | None = None,
    script: Path = SCRIPT,
) -> Iterator[Job]:
    """Run a script; kill all of its processes at the end."""
    with tempfile.TemporaryDirectory(prefix="ftcore-bench-") as place:
        home = Path(place)
        env = {
            **os.environ,
            "MARKS": str(home / "marks"),
            "XDG_STATE_HOME": place,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
        }
        name = f"bench-{nodes}x{workers}"
        started = time.monotonic_ns()
        processes = [
            subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for command in commands(launcher, nodes, workers, name, options or [], [str(script), *(args or [])])
        ]
        job = Job(processes, home / "marks", nodes * workers, started, home, name)
        try:
            yield job
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
