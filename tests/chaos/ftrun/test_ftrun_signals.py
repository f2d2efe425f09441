"""Signals to ftrun: workers get time to save, the exit code is right, nothing is left behind."""

import json
import os
import signal
from pathlib import Path

import pytest
from harness import ftrun, gone, kill, wait_until

SAVE = "time.sleep(0.3); (HERE / f'saved.{RANK}').write_text(str(step)); sys.exit(0)"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 5, signal.SIGHUP: 5}
ALONE, LOCAL = ["--nproc-per-node", "2"], ["--local-nodes", "2"]
CHOSEN = [(signal.SIGTERM, LOCAL), (signal.SIGINT, ALONE), (signal.SIGHUP, ALONE)]
"""What is tried without ``make long``."""

FORMS = pytest.mark.parametrize(
    "flags", [pytest.param(ALONE, id="alone", marks=pytest.mark.long), pytest.param(LOCAL, id="local-nodes")]
)
WAYS = [
    pytest.param(number, flags, id=f"{number.name}-{name}", marks=() if (number, flags) in CHOSEN else pytest.mark.long)
    for number in CODES
    for name, flags in (("alone", ALONE), ("local-nodes", LOCAL))
]


@pytest.mark.parametrize(("number", "flags"), WAYS)
def test_a_signal_ends_the_job_after_workers_saved(tmp_path: Path, number: signal.Signals, flags: list[str]) -> None:
    """The job ends as stopped, with the signal's exit code, once every worker has saved in its own time."""
    with ftrun(tmp_path) as job:
        for rank in (0, 1):
            job.on_term(rank, SAVE)
        run = job.start(*flags)
        job.stepped(1, nodes=len(flags) if flags is LOCAL else 1)
        run.signal(number)
        assert run.end() == CODES[number]
        assert (job.cwd / "saved.0").exists() and (job.cwd / "saved.1").exists()
        finished = job.wait("job.finished")
        assert (finished.data.outcome, finished.data.exit_code) == ("stopped", CODES[number])
        assert f"{number.name} to ftrun asked for it" in run.stderr()


@FORMS
def test_nohup_is_respected(tmp_path: Path, flags: list[str]) -> None:
    """A job that was started under nohup outlives the terminal: ftrun, agents, masters and workers."""
    with ftrun(tmp_path) as job:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited; no code runs after the fork
        try:
            run = job.start(*flags)
        finally:
            signal.signal(signal.SIGHUP, before)
        job.stepped(1, nodes=2 if flags is LOCAL else 1)
        everybody = [*job.processes("ftcore.cli"), *job.pids(1)]
        for pid in everybody:
            os.kill(pid, signal.SIGHUP)
        run.signal(signal.SIGHUP)
        job.steps_on()
        assert gone(everybody, 0.0) == everybody
        assert len(job.of("world.formed")) == 1
        job.finish()
        assert run.end() == 0


def test_a_signal_before_all_nodes_have_joined(tmp_path: Path) -> None:
    """The job ends, and the node that comes too late for it begins no other run alone."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "3")
        job.wait("node.joined")
        run.signal(signal.SIGTERM)
        assert run.end() == 5
        assert job.wait("job.finished").data.outcome == "stopped"


@FORMS
def test_a_second_signal_ends_it_quickly(tmp_path: Path, flags: list[str]) -> None:
    """Whoever signals twice does not wait for workers that ignore TERM, whatever their grace."""
    with ftrun(tmp_path) as job:
        for rank in (0, 1):
            job.on_term(rank, "(HERE / f'told.{RANK}').write_text('')")
        run = job.start(*flags)
        job.stepped(1, nodes=2 if flags is LOCAL else 1)
        run.signal(signal.SIGINT)
        wait_until(lambda: (job.cwd / "told.0").exists() and (job.cwd / "told.1").exists(), "both workers to be told")
        run.signal(signal.SIGINT)
        assert run.end() == 130
        stop = job.wait("action.ordered", job.wait("operator.commanded").seq)
        assert run.lived_after(stop) < stop.data.command.grace_s


@FORMS
def test_a_signal_without_a_master_is_obeyed(tmp_path: Path, flags: list[str]) -> None:
    """When no master answers, the agents end by themselves, workers first; the job may be taken up again."""
    with ftrun(tmp_path) as job:
        job.events.may_end_unheard = True  # unless the next master leads soon enough
        job.on_term(0, SAVE)
        run = job.start(*flags)
        job.stepped(1, nodes=2 if flags is LOCAL else 1)
        for pid in job.processes("ftcore.cli.master"):
            kill(pid, signal.SIGSTOP)
        run.signal(signal.SIGINT)
        assert run.end() == 130
        assert (job.cwd / "saved.0").exists()
        assert not gone(job.pids(1), 0.0)
        for pid in job.processes("ftcore.cli.master"):
            kill(pid, signal.SIGKILL)
        (job.cwd / "on_term.0").unlink()
        again = job.start(*flags)
        job.stepped(2, nodes=2 if flags is LOCAL else 1)
        job.steps_on()
        job.finish()
        assert again.end() == 0, "a wish to end that nobody heard does not end the next run"


@FORMS
def test_a_signal_during_a_recovery_is_obeyed(tmp_path: Path, flags: list[str]) -> None:
    """A job that is asked to end while it recovers ends, instead of starting again first."""
    with ftrun(tmp_path) as job:
        job.on_term(0, SAVE)
        run = job.start(*flags)
        job.stepped(1, nodes=2 if flags is LOCAL else 1)
        job.do(1, "sys.exit(3)")
        job.wait("incident.opened")
        run.signal(signal.SIGTERM)
        assert run.end() == 5
        assert job.wait("job.finished").data.outcome == "stopped"


def test_a_signal_before_anything_runs_is_obeyed(tmp_path: Path) -> None:
    """A signal while nodes are still awaited ends ftrun with its code."""
    with ftrun(tmp_path) as job:
        run = job.start("--nnodes", "2", "--node-rank", "0")
        job.wait("node.joined")
        run.signal(signal.SIGINT)
        assert run.end() == 130


def test_a_stopped_job_is_resumed(tmp_path: Path) -> None:
    """The same command after the end is run 2 of the same log, and trains on from what was saved."""
    with ftrun(tmp_path) as job:
        first = job.start()
        job.stepped(1)
        first.signal(signal.SIGTERM)
        assert first.end() == 5
        before, end = job.step(), job.wait("job.finished").seq
        second = job.start()
        assert job.wait("job.submitted", end).data.run == 2
        job.wait("workers.stepped", end)
        job.steps_on()
        job.finish()
        assert second.end() == 0
        assert job.step() > before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_job_whose_only_node_ends_before_the_first_round_is_over(tmp_path: Path, number: signal.Signals) -> None:
    """Nobody forms its first round any more: its run ends as stopped, and ``ftctl jobs`` says so."""
    with ftrun(tmp_path, timing={"master_idle_s": 4.0}) as job:
        run = job.start("--nnodes=2")
        job.wait("node.joined")
        run.signal(number)
        run.end()
        wait_until(lambda: bool(job.of("job.finished")), "the run to be over")
        [told] = json.loads(job.ftctl("jobs", "--format", "json").stdout)
        assert (told["state"], told["exit_code"]) == ("stopped", 5)
        assert "no round was formed" in told["reason"]
