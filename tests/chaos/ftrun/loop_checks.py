"""What the tests of training loops and frameworks share: starting a script that has a mishap, and checks of its run."""

import os
import re
import threading
from pathlib import Path

from harness import JOBS, Ftrun, Run, ftrun, wait_until
from test_ftrun_operator import ask

LONG = os.environ.get("FTCORE_LONG_TESTS") == "1"
TIMING = {"hang_look_s": 1.0}
"""Agents look at workers without progress after a second, so a phase of three seconds is looked at, and must go on."""

Losses = dict[tuple[int, int], set[str]]


def start(job: Ftrun, script: str | Path, *args: str, mishap: str = "", flags: tuple[str, ...] = ()) -> Run:
    """Start two ranks of a script that uses ``jobs/mishap.py``."""
    job.env |= {"MISHAP": mishap, "PYTHONPATH": str(JOBS)}
    return job.start("--nproc-per-node", "2", *flags, script=str(script), preload=False, args=args)


def losses(job: Ftrun) -> Losses:
    """The losses that each rank computed, by rank and step; equal ones once."""
    found: Losses = {}
    for rank in range(2):
        for line in (job.cwd / f"losses.{rank}").read_text().splitlines():
            step, _, loss = line.partition(" ")
            found.setdefault((rank, int(step)), set()).add(loss)
    return found


def weights(run: Run) -> str:
    """The digest of the weights with which both ranks ended."""
    first, second = re.findall(r"ends with ([0-9a-f]{16})", run.stdout())
    assert first == second
    return str(first)


def check_counts(run: Run) -> None:
    """The script's own steps, in all and of the last process, are those that ftcore counted."""
    lines = re.findall(r"rank \d own (\d+) (\d+) counted (\d+) (\d+)", run.stdout())
    assert len(lines) == 2
    for own, here, counted, counted_here in lines:
        assert (own, here) == (counted, counted_here)


class FrameworkRuns:
    """Runs of a framework's script, and those to which nothing happens, as far as they were needed.

    Args:
        script: the script.
        root: a directory.
    """

    def __init__(self, script: Path, root: Path) -> None:
        self._script, self._root = script, root
        self._undisturbed: dict[frozenset[str], tuple[str, Losses]] = {}

    def undisturbed(self, what: set[str]) -> tuple[str, Losses]:
        """Weights and losses of a run with these arguments."""
        key = frozenset(what - {"sleep"})
        if key not in self._undisturbed:
            with ftrun(self._root / "-".join(["undisturbed", *sorted(key)]), timing=TIMING) as job:
                run = start(job, self._script, *sorted(key))
                assert run.end() == 0
                check_counts(run)
                assert "ftcore: the last checkpoint" not in run.stderr(), "without --checkpoints none is written"
                self._undisturbed[key] = weights(run), losses(job)
        return self._undisturbed[key]

    def check_mishap(self, root: Path, what: set[str], mishap: str) -> None:
        """A run with a mishap ends as one without, and has one restart."""
        expected = self.undisturbed(what)
        with ftrun(root, timing=TIMING) as job:
            run = start(job, self._script, *sorted(what), mishap=mishap)
            assert run.end() == 0
            check_counts(run)
            assert len(job.of("world.formed")) == 2, "one restart, for the mishap"
            assert job.of("world.formed")[-1].data.resume.source == "memory"
            assert (weights(run), losses(job)) == expected

    def check_pause_and_storage(self, root: Path, what: set[str]) -> None:
        """A job is paused, saves on request, is stopped, and the same command continues from storage."""
        expected = self.undisturbed(what)
        flags = ("--checkpoints", "saved")
        with ftrun(root, timing=TIMING) as job:
            first = start(job, self._script, *sorted(what), mishap="hold:5:1", flags=flags)
            job.stepped(1)
            wait_until((job.cwd / "happened").exists, "step 5")
            paused: list[tuple[int, dict[str, object]]] = []
            thread = threading.Thread(target=lambda: paused.append(ask(job, "pause")))
            thread.start()
            job.wait("action.ordered", job.wait("operator.commanded").seq)
            (job.cwd / "go").touch()
            thread.join()
            assert paused[0][1].get("outcome") == "done", paused
            code, told = ask(job, "checkpoint")
            assert (code, told["outcome"]) == (0, "done"), told
            assert job.ftctl("--job", job.job, "stop").returncode == 0
            assert first.end() == 5
            assert not job.of("worker.failed")
            second = start(job, self._script, *sorted(what), flags=flags)
            assert second.end() == 0
            check_counts(second)
            assert job.of("world.formed")[-1].data.resume.step in (5, 6)
            assert (weights(second), losses(job)) == expected
