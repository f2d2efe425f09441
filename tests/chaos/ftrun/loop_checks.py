"""What the tests of training loops and frameworks share: starting a script that has a mishap, and checks of its run."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path

from harness import JOBS, Ftrun, Run, ftrun, wait_until
from test_ftrun_operator import ask

TIMING = {"hang_look_s": 1.0}

PATIENCE_S = 120.0
"""How long a run of a framework is awaited: its imports alone, twice, take a minute on a busy machine."""
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


def check_counts(run: Run, *, numbered: bool = True) -> None:
    """The script's own steps are those that ftcore counted.

    Args:
        run: the run.
        numbered: ftcore knows the number of the last step, from the script's reports or the optimizer's state; else it
            only counts the steps of each process.
    """
    lines = re.findall(r"rank \d own (\d+) (\d+) counted (\d+|-) (\d+)", run.stdout())
    assert len(lines) == 2
    for own, here, counted, counted_here in lines:
        assert (counted, counted_here) == (own if numbered else "-", here)


def check_outside(script: Path, root: Path) -> None:
    """A framework's script runs without a launcher, and nothing of ftcore is said or saved."""
    env = {**os.environ, "PYTHONPATH": str(JOBS)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=root, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 0 own 14 14" in done.stdout
    assert "ftcore" not in done.stderr


class FrameworkRuns:
    """Runs of a framework's script, whose steps its callback reports, and those to which nothing happens, as needed.

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
            with ftrun(self._undisturbed_at(key), timing=TIMING) as job:
                run = start(job, self._script, *sorted(key))
                assert run.end(PATIENCE_S) == 0
                check_counts(run)
                assert "ftcore: the last checkpoint" not in run.stderr(), "without --checkpoints none is written"
                self._undisturbed[key] = weights(run), losses(job)
        return self._undisturbed[key]

    def _undisturbed_at(self, what: Collection[str]) -> Path:
        return self._root / "-".join(["undisturbed", *sorted(what)])

    def check_mishap(self, root: Path, what: set[str], mishap: str) -> None:
        """A run with a mishap ends as one without, and has one restart."""
        expected = self.undisturbed(what)
        with ftrun(root, timing=TIMING) as job:
            run = start(job, self._script, *sorted(what), mishap=mishap)
            assert run.end(PATIENCE_S) == 0
            check_counts(run)
            assert len(job.of("world.formed")) == 2, "one restart, for the mishap"
            assert job.of("world.formed")[-1].data.resume.source == "memory"
            assert (weights(run), losses(job)) == expected

    def check_own_checkpoint(self, root: Path, what: set[str], saved: str, step: int, mishap: str) -> None:
        """A run that continues from a checkpoint of the framework has a mishap, and ends as one without.

        Args:
            root: a directory.
            what: the script's arguments, with which it writes such a checkpoint.
            saved: the checkpoint's path.
            step: its step.
            mishap: a later one.
        """
        digest, expected = self.undisturbed(what)
        with ftrun(root, timing=TIMING) as job:
            source, target = self._undisturbed_at(what) / "cwd" / saved, job.cwd / saved
            target.parent.mkdir(parents=True)
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
            job.env["RESUME"] = saved
            run = start(job, self._script, *sorted(what), mishap=mishap)
            assert run.end(PATIENCE_S) == 0
            check_counts(run)
            assert job.of("world.formed")[-1].data.resume.source == "memory"
            assert losses(job) == {key: each for key, each in expected.items() if key[1] > step}
            assert weights(run) == digest

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
