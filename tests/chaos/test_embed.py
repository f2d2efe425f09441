"""Launchers that embed ftcore bring their own processes."""

import asyncio
import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from first_event import first_event

import ftcore

EXAMPLES = Path(__file__).parents[2] / "examples" / "embed"
BEGINS = re.compile(r"\[node-(\d):0\] rank (\d) of 2, process (\d+): begins after step (\d+)")


def test_a_launcher_with_its_own_processes_recovers_through_ftcore() -> None:
    """The example's failing worker is restarted by ftcore's decision, through the example's own supervisor."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "launcher.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "worker 1 of 2, attempt 1" in done.stdout
    for expected in ("worker.failed", "incident.opened", "policy.considered", "job.finished", "the job succeeded"):
        assert expected in done.stdout


class Launched:
    """``asyncio_launcher.py`` with two nodes of one worker each, and its output."""

    def __init__(self, root: Path, *script: str, flags: tuple[str, ...] = ()) -> None:
        self.root = root
        argv = [sys.executable, str(EXAMPLES / "asyncio_launcher.py"), "--nodes", "2", "--dir", str(root), *flags]
        self.process = subprocess.Popen([*argv, *script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.seen: list[str] = []

    def line(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Read on until a line of the output matches."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line)
            if found := pattern.search(line):
                return found
        raise AssertionError(f"no line matches {pattern.pattern!r}: {self.seen}, {self.process.communicate()}")

    def begun(self) -> dict[int, tuple[int, int]]:
        """The next round: the process and the first step of each node's worker."""
        found = [self.line(BEGINS) for _ in range(2)]
        return {int(each[1]): (int(each[3]), int(each[4])) for each in found}

    def event(self, kind: str, where: Callable[[Any], bool] = lambda data: True) -> ftcore.Event:
        """Wait for the first event of a type in the job's log."""
        return asyncio.run(first_event(f"sqlite://{self.root}/log", "job", kind, where=where))

    def stepped(self, round_: int) -> None:
        """Wait until the master knows that the workers of a round have completed a step."""
        self.event("workers.stepped", lambda data: data.round >= round_)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=90)
        return self.process.returncode, "".join(self.seen) + out, err


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[list[Launched]]:
    found: list[Launched] = []
    yield found
    for each in found:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for_end(pid: int) -> None:
    """Wait until a process that was killed has ended; one that its new parent has not collected counts as ended."""
    with contextlib.suppress(OSError):
        pidfd = os.pidfd_open(pid)
        try:
            assert select.select([pidfd], [], [], 30)[0], f"{pid} runs"
        finally:
            os.close(pidfd)


def test_the_asyncio_launcher_resumes_after_the_death_of_a_worker_and_of_a_node(
    launched: list[Launched], tmp_path: Path
) -> None:
    """A killed worker costs one restart. A killed node, which led, is started again, and another node leads."""
    script = (
        str(EXAMPLES / "train.py"),
        "--steps",
        "150",
        "--pause",
        "0.03",
        "--checkpoint",
        str(tmp_path / "line.pt"),
    )
    run = Launched(tmp_path, *script)
    launched.append(run)
    workers = run.begun()
    assert {first for _, first in workers.values()} == {0}
    run.stepped(1)
    os.kill(workers[1][0], signal.SIGKILL)
    workers = run.begun()
    resumed = {first for _, first in workers.values()}
    assert len(resumed) == 1
    assert min(resumed) > 0
    run.stepped(2)
    os.kill(parent(workers[0][0]), signal.SIGKILL)
    again = {first for _, first in run.begun().values()}
    assert len(again) == 1
    assert min(again) > min(resumed)
    code, out, err = run.end()
    assert code == 0, err
    assert "after 150 steps: y = 3.000 x + 1.000" in out
    assert "node-0 was ended by SIGKILL; restart 1 of it" in err


def test_the_asyncio_launcher_returns_the_jobs_exit_code(launched: list[Launched], tmp_path: Path) -> None:
    """A script that always fails ends the job with its own exit code; its last lines are in the log."""
    script = tmp_path / "fails.py"
    script.write_text("import sys\nsys.exit('no data in /data')\n")
    run = Launched(tmp_path, str(script))
    launched.append(run)
    code, out, _ = run.end()
    assert code == 1
    assert "[node-0:0] no data in /data" in out
    assert "no data in /data" in str(run.event("worker.failed").data)


def test_the_asyncio_launcher_returns_the_jobs_exit_code_and_not_a_nodes(
    launched: list[Launched], tmp_path: Path
) -> None:
    """A killed node is not started again; the job goes on with the other, and succeeds."""
    script = tmp_path / "counts.py"
    script.write_text(
        "import os, time\n"
        "from pathlib import Path\n"
        "from ftcore import worker\n"
        "print(f\"rank {os.environ['RANK']} of 2, process {os.getpid()}: begins after step 0\", flush=True)\n"
        "step = 0\n"
        "while not Path(__file__).with_name('finish').exists():\n"
        "    step += 1\n"
        "    worker.report(step)\n"
        "    time.sleep(0.01)\n"
    )
    run = Launched(tmp_path, str(script), flags=("--min-nodes", "1", "--node-restarts", "0"))
    launched.append(run)
    workers = run.begun()
    run.stepped(1)
    os.kill(parent(workers[1][0]), signal.SIGKILL)
    run.stepped(2)
    (tmp_path / "finish").touch()
    code, _, err = run.end()
    assert code == 0, err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_asyncio_launcher_stops_the_job(
    launched: list[Launched], tmp_path: Path, number: signal.Signals
) -> None:
    """The job ends with 128 and the signal's number; no process of a worker is left, even if it ignores SIGTERM."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, signal, sys, time\n"
        "child = os.fork()\n"
        "handle = signal.SIG_IGN if child == 0 else lambda *_: sys.exit('asked to end')\n"
        "signal.signal(signal.SIGTERM, handle)\n"
        "if child == 0:\n"
        "    rank, pid = os.environ['RANK'], os.getpid()\n"
        "    print(f'rank {rank} of 2, process {pid}: begins after step 0', flush=True)\n"
        "while True:\n    time.sleep(60)\n"
    )
    run = Launched(tmp_path, str(script))
    launched.append(run)
    workers = run.begun()
    workers |= {10 + node: (parent(pid), 0) for node, (pid, _) in workers.items()}
    run.process.send_signal(number)
    code, out, err = run.end()
    assert code == 128 + number, err
    assert "[node-1:0] asked to end" in out
    for pid, _ in workers.values():
        wait_for_end(pid)
