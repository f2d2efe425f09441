"""The leader's host loses etcd alone, or is drained: the next leader is a standby on another host."""

from pathlib import Path

import pytest
from fleet import MASTER, fleet
from harness import wait_until

NODES = ("h4", "h5", "h6")
"""Hosts without a member of etcd."""


@pytest.mark.timeout(300)
def test_the_leader_s_host_is_cut_off_from_etcd_alone(tmp_path: Path) -> None:
    """Another host leads, the node of the old leader is not lost, and no worker is restarted; with etcd back the job
    recovers from a failure as ever."""
    with fleet(tmp_path, 6) as job:
        runs = [job.start_on(job[name], "--nnodes", "3", "--node-rank", str(rank)) for rank, name in enumerate(NODES)]
        seq = job.stepped(1, nodes=3).seq
        wait_until(lambda: all(job[name].processes(MASTER) for name in NODES), "two standbys")
        job.all_step_on(3, by=200)  # the standbys have told where they serve
        leader = job.master_host()
        for member in job.etcd.hosts:
            leader.deafen(member)
        elected = job.wait("master.elected", seq)
        assert elected.data.host != leader.name
        job.all_step_on(3, by=500)  # longer than every lease
        assert not job.of("node.lost") and len(job.of("world.formed")) == 1
        for member in job.etcd.hosts:
            leader.undeafen(member)
        job.do(1, "sys.exit(3)")
        job.train_again(elected.seq, 3)
        job.end(*runs)


@pytest.mark.timeout(300)
def test_a_drained_host_takes_its_master_along(tmp_path: Path) -> None:
    """It may go down or be cut off: its leader resigns, another host leads, and nothing is left on it."""
    with fleet(tmp_path, 6) as job:
        runs = {
            name: job.start_on(job[name], "--nnodes", "2:3", "--node-rank", str(rank))
            for rank, name in enumerate(NODES)
        }
        seq = job.stepped(1, nodes=3).seq
        wait_until(lambda: all(job[name].processes(MASTER) for name in NODES), "two standbys")
        leader = job.master_host()
        told = job.ftctl("drain", leader.name, "--why", "a new kernel", "--job", job.job)
        assert told.returncode == 0, told.stderr
        assert runs.pop(leader.name).end() == 5
        assert not leader.processes(MASTER)
        elected = job.wait("master.elected", seq)
        assert elected.data.host != leader.name
        job.train_again(seq, 2)
        assert not job.of("node.lost")
        job.end(*runs.values())
