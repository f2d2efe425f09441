"""Losses that stock torchrun does not survive: whoever goes, and however, the others form anew and train."""

import signal
from pathlib import Path

import pytest
from fleet import AGENT, Fleet, fleet
from harness import Run, gone
from hosts import Host

WORLD = 2


def start(job: Fleet, host: Host) -> Run:
    return job.start_on(host, "--nnodes", str(WORLD), "--node-rank", str(job.lan.hosts.index(host)))


def back(job: Fleet, host: Host, run: Run) -> Run:
    """The host is there again, with its etcd and a new agent, which stands by."""
    run.end()
    if not host.on:
        host.boot()
        host.heal()
        job.etcd.start(host)
    seq = job.events.seen[-1].seq
    again = start(job, host)
    job.wait("node.joined", seq, node=host.name)
    return again


def sigkill(host: Host) -> None:
    host.signal(signal.SIGKILL, AGENT)


def sigterm(host: Host) -> None:
    host.signal(signal.SIGTERM, AGENT)


@pytest.mark.timeout(400)
def test_losses_outside_of_a_collective(tmp_path: Path) -> None:
    """No rank waits for another, so no rank sees a loss. A power cut of the node that holds the master and a member of
    etcd; SIGKILL of all that runs on the node that serves the store; SIGKILL and SIGTERM of an agent.
    """
    with fleet(tmp_path, 3) as job:
        runs = {host.name: start(job, host) for host in job.lan.hosts}
        job.stepped(1, nodes=WORLD)
        for host in job.lan.hosts:
            job.wait("node.joined", node=host.name)
        for how in (Host.power_off, Host.kill, sigkill, sigterm):
            host = job.master_host() if how == Host.power_off else job.world()[0 if how == Host.kill else -1]
            seq = job.events.seen[-1].seq
            orphans = [worker.pid for worker in job.workers(host)]
            how(host)
            if orphans:
                job.train_again(seq, WORLD)
            else:
                job.wait("node.lost", seq, node=host.name)
            assert host not in job.world()
            assert not gone(orphans), "a worker outlives its node"
            assert len({worker.round for worker in job.workers()}) == 1
            runs[host.name] = back(job, host, runs[host.name])
        job.end(*runs.values())
