"""Workers that neither end nor go on."""

import os
import signal
from pathlib import Path

from harness import Ftrun, ftrun, wait_until

SOON = {"hang_idle_s": 1.0, "hang_busy_s": 3.0}


def recovers(job: Ftrun, after: int) -> None:
    opened = job.wait("incident.opened", after)
    assert opened.data.fault.root == after
    resolved = job.wait("incident.resolved", opened.seq)
    assert resolved.data.outcome == "stepped"
    job.stepped(2)
    job.finish()


def test_a_worker_that_was_stopped_for_good(tmp_path: Path) -> None:
    """SIGSTOP in mid-training: the hang is told with its rank and times, and the job goes on in a new round."""
    with ftrun(tmp_path, timing=SOON) as job:
        path = job.cwd / "policy.yaml"
        path.write_text("version: 1\nchain:\n- process_restart: {grace: 500ms}\n- stop\n")
        run = job.start(f"--policy={path}", "--nproc-per-node", "2")
        job.stepped(1)
        job.steps_on(1, by=20)
        os.kill(job.pids(1)[1], signal.SIGSTOP)
        seen = job.wait("fault.observed", source="detector")
        assert seen.data.kind == "hang"
        assert (seen.data.rank, seen.data.round) == (1, 1)
        assert (
            job.step(1) - 1 <= seen.data.step <= job.step(1)
        )  # it may have stopped before it told the step it wrote down
        assert "rank 1 was stopped by a signal" in seen.data.message
        assert seen.data.values["waited_s"] >= 1.0 > seen.data.values["usual_s"] > 0
        recovers(job, seen.seq)
        assert run.end() == 0
        assert len(job.of("fault.observed")) == 1


def test_a_worker_that_waits_for_ever_tells_where(tmp_path: Path) -> None:
    """A rank that sleeps is found, and the report holds its Python stack, as does its log."""
    with ftrun(tmp_path, timing=SOON) as job:
        run = job.start("--nproc-per-node", "2")
        job.stepped(1)
        job.steps_on(0, by=20)
        job.do(0, "def wait_for_godot(): time.sleep(10**6)\nwait_for_godot()")
        seen = job.wait("fault.observed")
        assert seen.data.rank == 0
        assert "rank 0 waits" in seen.data.message
        assert "in wait_for_godot" in seen.data.message
        recovers(job, seen.seq)
        assert run.end() == 0
        (log,) = job.home.glob("ftcore/logs/job/*/round_1/rank_0/stderr.log")
        assert "in wait_for_godot" in log.read_text()


def test_a_busy_worker_gets_more_time(tmp_path: Path) -> None:
    """A rank that computes is left alone at the shorter limit: it may be evaluating; its own end of it is no hang."""
    with ftrun(tmp_path, timing={"hang_idle_s": 1.0, "hang_busy_s": 30.0}) as job:
        run = job.start("--nproc-per-node", "2")
        job.stepped(1)
        job.steps_on(1, by=20)
        job.do(1, "end = time.monotonic() + 2.5\nwhile time.monotonic() < end: pass")
        job.steps_on(1, by=5)
        job.finish()
        assert run.end() == 0
        assert not job.of("fault.observed")


def test_of_ranks_that_wait_for_each_other_the_stopped_one_is_named(tmp_path: Path) -> None:
    """Under DDP on two nodes all stand still at once; the node with the stopped rank tells, the other has patience."""
    with ftrun(tmp_path, timing={"hang_idle_s": 2.0, "hang_busy_s": 60.0}) as job:
        path = job.cwd / "policy.yaml"
        path.write_text("version: 1\nchain:\n- process_restart: {grace: 500ms}\n- stop\n")
        run = job.start(f"--policy={path}", "--local-nodes", "2", script="ddp.py", preload=False)
        job.stepped(1, nodes=2)
        steps = job.cwd / "step.0"  # written when the first step is made, which may be told before
        wait_until(lambda: steps.exists() and len(steps.read_text()) > 1, "ten steps")
        started = next(event for event in job.of("workers.started") if event.data.pids)
        os.kill(started.data.pids[0], signal.SIGSTOP)
        seen = job.wait("fault.observed", source="detector")
        assert (seen.data.node, seen.data.kind) == (started.data.node, "hang")
        resolved = job.wait("incident.resolved", seen.seq)
        assert resolved.data.outcome == "stepped"
        job.finish()
        assert run.end() == 0
        assert len(job.of("fault.observed")) == 1
