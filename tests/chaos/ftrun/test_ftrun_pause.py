"""Pauses and saves at a step boundary: all ranks after the same step, in the same processes, whatever dies then."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, kill
from test_ftrun_operator import ask

RANKS = 4
NODES = ("--local-nodes", "2", "--nproc-per-node", "2")


def pause(job: Ftrun) -> None:
    code, told = ask(job, "pause")
    assert (code, told["outcome"]) == (0, "done"), told


def resume(job: Ftrun) -> None:
    code, told = ask(job, "resume")
    assert (code, told["outcome"]) == (0, "done"), told


def paused_steps(job: Ftrun, after: int = 0) -> set[int]:
    """The steps after which the nodes of the newest pause stopped."""
    newest = [event for event in job.of("action.ordered") if event.data.effect.startswith("pause_workers")][-1]
    obeyed = [event for event in job.of("order.obeyed") if event.data.effect == newest.data.effect]
    assert len(obeyed) == 2 and newest.seq > after
    return {event.data.step for event in obeyed}


def saved(job: Ftrun) -> list[int]:
    """The steps that the ranks have saved on request."""
    return [int(path.read_text()) for rank in range(RANKS) if (path := job.cwd / f"saved.{rank}").exists()]


@pytest.fixture
def counting(tmp_path: Path) -> Iterator[Ftrun]:
    """A job whose script marks its boundaries and saves on request; its ranks do not wait for each other."""
    with ftrun(tmp_path) as job:
        job.drop("boundary", "")
        yield job


def test_a_plain_script_pauses_and_goes_on(tmp_path: Path) -> None:
    """A DDP script that knows nothing of ftcore: every rank stops after the same step, and no process is replaced."""
    with ftrun(tmp_path) as job:
        run = job.start(*NODES, script="ddp.py", preload=False)
        job.stepped(1, nodes=2)
        job.steps_on(by=20)
        for _ in range(3):
            pause(job)
            assert len(paused_steps(job)) == 1
            assert "training waits at a step boundary" in job.ftctl("status").stdout
            resume(job)
            job.steps_on(by=5)
        job.finish()
        assert run.end() == 0
        weights = {line.rpartition(" ")[2] for line in run.stdout().splitlines() if " ends at step " in line}
        assert len(weights) == 1
        assert len(job.of("world.formed")) == 1 and not job.of("worker.failed")


@pytest.mark.parametrize("victim", ["worker", "agent", "master"])
def test_a_paused_job_survives(counting: Ftrun, victim: str) -> None:
    """A new master goes on with the pause; after a new round the job is paused again."""
    job = counting
    run = job.start(*NODES)
    job.stepped(1, nodes=2)
    pause(job)
    last = job.events.seen[-1].seq
    if victim == "master":
        kill(job.master())
        job.wait("master.elected", last)
    else:
        kill(job.pids(1, "node1")[0] if victim == "worker" else job.agent("node1"))
        job.wait("incident.resolved", last, outcome="paused")
        assert len(job.of("world.formed")) == 2
    assert json.loads(job.ftctl("status", "--format", "json").stdout)["paused"] is True
    resume(job)
    job.all_step_on(RANKS)
    job.finish()
    assert run.end() == 0


def test_ranks_that_do_not_wait_for_each_other_are_led_to_one_boundary(counting: Ftrun) -> None:
    """The ranks' steps differ by many; each goes on up to the furthest one."""
    job = counting
    job.always(0, "time.sleep(0.05)")
    run = job.start(*NODES)
    job.stepped(1, nodes=2)
    job.steps_on(3, by=40)
    assert job.step(3) > job.step(0)
    pause(job)
    steps = [job.step(rank) for rank in range(RANKS)]
    assert len(set(steps)) == 1 == len(paused_steps(job))
    resume(job)
    job.finish()
    assert run.end() == 0


def test_a_checkpoint_on_request(counting: Ftrun) -> None:
    """All ranks save after the same step while the job trains; while it is paused, it stays paused."""
    job = counting
    run = job.start(*NODES)
    job.stepped(1, nodes=2)
    code, told = ask(job, "checkpoint")
    assert (code, told["outcome"]) == (0, "done"), told
    first = saved(job)
    assert len(first) == RANKS and len(set(first)) == 1
    job.all_step_on(RANKS)
    pause(job)
    at = {job.step(rank) for rank in range(RANKS)}
    code, told = ask(job, "checkpoint")
    assert (code, told["outcome"]) == (0, "done"), told
    assert set(saved(job)) == at
    assert "training waits at a step boundary" in job.ftctl("status").stdout
    resume(job)
    job.all_step_on(RANKS)
    job.finish()
    assert run.end() == 0
    assert len(job.of("world.formed")) == 1


def test_a_save_that_fails_is_told_and_training_goes_on(counting: Ftrun) -> None:
    """The request fails with the rank's error."""
    job = counting
    job.drop("fail.2", "raise OSError(28, 'No space left on device')")
    run = job.start(*NODES)
    job.stepped(1, nodes=2)
    code, told = ask(job, "checkpoint")
    assert (code, told["outcome"]) == (1, "dropped"), told
    assert "No space left on device" in str(job.of("order.refused")[-1].data.reason)
    job.all_step_on(RANKS)
    code, _ = ask(job, "checkpoint")
    assert code == 0
    job.finish()
    assert run.end() == 0
    assert "the requested checkpoint failed: OSError" in run.stderr()


def test_a_drain_saves_first(counting: Ftrun) -> None:
    """Before the node leaves, all ranks save after the same step."""
    job = counting
    run = job.start(*NODES, "--nnodes", "1:2", "--platform", "local:?capacity=0")
    job.stepped(1, nodes=2)
    code, told = ask(job, "drain", "node1")
    assert (code, told["outcome"]) == (0, "done"), told
    assert len(saved(job)) == RANKS and len(set(saved(job))) == 1
    job.stepped(2)
    job.finish()
    assert run.end() == 0


@pytest.mark.parametrize("source", ["platform", "signal"])
def test_a_preempted_node_saves_first(counting: Ftrun, source: str) -> None:
    """SIGTERM to the agent, with a notice of the platform or without: all ranks save, then it leaves."""
    job = counting
    preempt = ["--platform", "local:?preempt=node1@3s&grace=30s"] if source == "platform" else []
    run = job.start(*NODES, *preempt)
    job.stepped(1, nodes=2)
    if source == "signal":
        kill(job.agent("node1"), signal.SIGTERM)
    left = job.wait("node.left", node="node1")
    observed = [event for event in job.of("fault.observed") if event.data.source == "agent"]
    assert [(event.data.kind, event.data.node) for event in observed] == [("preemption-notice", "node1")]
    done = job.wait("incident.continued", outcome="saved")
    assert done.seq < left.seq
    assert len(saved(job)) == RANKS and len(set(saved(job))) == 1
    job.wait("incident.resolved", left.seq)
    job.all_step_on(RANKS)
    job.finish()
    assert run.end() == 0


def test_all_nodes_are_ordered_to_leave_at_once(counting: Ftrun) -> None:
    """A scheduler preempts the whole job: every rank saves after the same step before the first node goes."""
    job = counting
    runs = [job.start("--nnodes", "2", "--node-rank", str(rank), "--node-id", f"n{rank}") for rank in (0, 1)]
    job.stepped(1, nodes=2)
    job.all_step_on(2)
    for run in runs:
        run.signal(signal.SIGTERM)
    assert [run.end() for run in runs] == [5, 5]
    assert len(saved(job)) == 2 and len(set(saved(job))) == 1
    assert job.wait("incident.continued", outcome="saved").seq < job.wait("node.left").seq
