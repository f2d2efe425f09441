"""The master dies, or freezes: training goes on, recoveries are finished by the next one, nothing is decided twice."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, gone, kill

POINTS = [
    ("worker.failed", {}),
    ("action.ordered", {}),
    ("workers.stopped", {}),
    ("store.opened", {"round": 2}),
    ("world.formed", {"round": 2}),
    ("workers.started", {"round": 2}),
]
"""Phases of a recovery, by the event that begins them."""


@pytest.mark.parametrize(("kind", "fields"), POINTS, ids=[kind for kind, _ in POINTS])
def test_a_master_may_die_at_every_phase_of_a_recovery(tmp_path: Path, kind: str, fields: dict[str, int]) -> None:
    """The next master goes on where the log ends: one more round, and no worker of the old one is left in it."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "2")
        stepped = job.stepped(1)
        first = job.master()
        job.do(1, "sys.exit(3)")
        job.wait(kind, stepped.seq, **fields)
        kill(first)
        elected = job.wait("master.elected", stepped.seq)
        assert elected.term > 1
        job.stepped(2)
        job.wait("incident.resolved")
        job.steps_on()
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 2 and len(job.of("incident.opened")) == 1
        assert "a new master leads (term 2)" in run.stderr()


def test_training_goes_on_without_a_master(tmp_path: Path) -> None:
    """Masters die one after the other while nothing else happens: no worker notices."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        last = job.stepped(1, nodes=2).seq
        for _ in range(3):
            kill(job.master())
            last = job.wait("master.elected", last).seq
            job.steps_on()
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 1 and not job.of("incident.opened")


def test_agent_and_master_die_together(tmp_path: Path) -> None:
    """A node dies with the master that ran beside it: the other node's standby leads and the node is replaced."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        job.stepped(1, nodes=2)
        kill(job.master())
        kill(job.agent("node0"))
        job.stepped(2, nodes=2)
        job.finish()
        assert run.end() == 0
        assert not gone(job.pids(1))


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_frozen_master_is_deposed(tmp_path: Path, nodes: int) -> None:
    """A master that freezes is replaced without a worker noticing; when it wakes, nothing of it counts and it ends."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", str(nodes))
        stepped = job.stepped(1, nodes=nodes)
        frozen = job.master()
        os.kill(frozen, signal.SIGSTOP)
        elected = job.wait("master.elected", stepped.seq)
        job.steps_on()
        job.do(0, "sys.exit(3)")
        job.stepped(2, nodes=nodes)
        wake(frozen)
        assert not gone([frozen])
        job.steps_on()
        job.finish()
        assert run.end() == 0
        assert all(event.term >= elected.term for event in job.events.read() if event.seq > elected.seq)
        assert not job.of("node.lost") and len(job.of("world.formed")) == 2


def test_a_master_frozen_in_a_recovery_is_deposed(tmp_path: Path) -> None:
    """What a master decided before it froze is carried out once, by the next one; its own late orders are refused."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        job.stepped(1, nodes=2)
        frozen = job.master()
        job.do(0, "sys.exit(3)")
        job.wait("worker.failed")
        os.kill(frozen, signal.SIGSTOP)
        job.stepped(2, nodes=2)
        wake(frozen)
        assert not gone([frozen])
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 2


def test_a_standby_may_die(tmp_path: Path) -> None:
    """The death of a standby costs nothing."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        job.stepped(1, nodes=2)
        for pid in standbys(job):
            kill(pid)
        job.steps_on()
        kill(job.master())
        job.do(0, "sys.exit(3)")
        job.stepped(2, nodes=2)
        job.finish()
        assert run.end() == 0


def wake(pid: int) -> None:
    """Let a stopped master go on, unless it was stopped while writing and had to be killed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def standbys(job: Ftrun) -> list[int]:
    return [pid for pid in job.processes("ftcore.cli.master") if pid != job.master()]
