"""Pauses by themselves: the training waits for maintenance or for the storage, and goes on without an operator."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Ftrun, Run, ftrun, kill
from test_ftrun_checkpoints import weights

POLICY = """
version: 1
chain:
- step_pause: {{on: [maintenance-notice, storage-away], patience: {patience}}}
- process_restart
- shrink
- stop
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as one:
        yield one


def start(job: Ftrun, *argv: str, steps: int = 120, patience: str = "10m", persist_every: int = 5) -> Run:
    job.drop("policy.yaml", POLICY.format(patience=patience))
    job.always(0, "time.sleep(0.05)")  # it trains for at least six seconds
    flags = ("--policy", "policy.yaml", "--checkpoints", "saved", *argv)
    return job.start(*flags, script="registered.py", preload=False, args=(str(steps), "ddp", str(persist_every)))


def check_one_round(job: Ftrun) -> None:
    """All processes lived through it, and no step was computed again."""
    assert len(job.of("world.formed")) == 1 and not job.of("worker.failed")


@pytest.mark.parametrize(
    "victim", [pytest.param("", marks=pytest.mark.long), pytest.param("master", marks=pytest.mark.long), "worker"]
)
def test_the_training_waits_for_the_maintenance_of_a_node(job: Ftrun, victim: str) -> None:
    """Also under a new master; and in the next round, if a worker is killed meanwhile."""
    run = start(job, "--local-nodes", "2", "--platform", "local:?maintain=node1@2s/6s")
    paused = job.wait("incident.resolved", outcome="paused")
    (begun,) = job.of("fault.observed")
    assert (begun.data.kind, begun.data.node) == ("maintenance-notice", "node1")
    status = job.ftctl("status").stdout
    assert "training waits at a step boundary, paused by step_pause: the maintenance of node1" in status
    if victim == "master":
        kill(job.master())
        job.wait("master.elected", paused.seq)
    elif victim == "worker":
        kill(job.pids(1)[0])
        job.stepped(2, nodes=2)
    over = job.wait("disruption.ended", paused.seq)
    if victim != "worker":
        job.wait("incident.resolved", over.seq, outcome="resumed")
        check_one_round(job)
        assert "the maintenance of node1 is over" in run.stderr()
    assert run.end() == 0
    assert "goes on by itself" in run.stderr() and len(weights(run)) == 1


def test_a_node_whose_maintenance_lasts_too_long_is_drained(job: Ftrun) -> None:
    """The others go on from the boundary at which all of them waited."""
    run = start(
        job, "--local-nodes", "3", "--nnodes", "2:3", "--platform", "local:?maintain=node1@2s/10m", patience="1s"
    )
    job.wait("incident.resolved", outcome="paused")
    left = job.wait("node.left", node="node1")
    job.stepped(2, nodes=2)
    formed = job.of("world.formed")[-1]
    assert formed.data.resume.source == "memory" and formed.seq < left.seq + 50
    at = {event.data.step for event in job.of("order.obeyed") if event.data.effect.startswith("pause_workers")}
    assert at == {formed.data.resume.step}
    assert run.end() == 0


def put_away(job: Ftrun) -> None:
    """A file in the place of the directory: nothing can be written there."""
    (job.cwd / "saved").rename(job.cwd / "elsewhere")
    (job.cwd / "saved").write_text("no directory")


def bring_back(job: Ftrun) -> None:
    (job.cwd / "saved").unlink()
    (job.cwd / "elsewhere").rename(job.cwd / "saved")


def test_the_training_waits_for_the_storage(job: Ftrun) -> None:
    """The state of the boundary is written when the storage is back, without a save of the script."""
    run = start(job, "--nproc-per-node", "2")
    job.wait("checkpoint.committed")
    put_away(job)
    paused = job.wait("incident.resolved", outcome="paused")
    waits = job.step(0)
    written = [event.data.step for event in job.of("checkpoint.committed")]
    bring_back(job)
    back = job.wait("checkpoint.committed", paused.seq)
    job.wait("incident.resolved", paused.seq, outcome="resumed")
    assert max(written) < back.data.step <= waits
    assert sum(event.data.away for event in job.of("checkpoint.failed")) <= 2, "further tries are not recorded"
    check_one_round(job)
    assert run.end() == 0
    assert len(weights(run)) == 1


def test_the_training_goes_on_if_the_storage_stays_away(job: Ftrun) -> None:
    """Nothing but the checkpoints is missing."""
    run = start(job, "--nproc-per-node", "2", patience="1s")
    job.wait("checkpoint.committed")
    put_away(job)
    paused = job.wait("incident.resolved", outcome="paused")
    job.wait("incident.resolved", paused.seq, outcome="resumed")
    job.steps_on(by=20)
    assert json.loads(job.ftctl("status", "--format", "json").stdout)["paused"] is False
    check_one_round(job)
    bring_back(job)
    job.wait("checkpoint.committed", paused.seq)
    assert run.end() == 0
    assert len(weights(run)) == 1
