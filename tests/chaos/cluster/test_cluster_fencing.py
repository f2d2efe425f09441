"""Hosts that stand still or are cut off, are given up, and come back: nothing they do counts any more."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fleet import AGENT, MASTER, Fleet, fleet
from harness import gone, kill, wait_until
from hosts import Host

WORLD = 2


@pytest.mark.timeout(400)
def test_who_was_given_up_is_fenced(tmp_path: Path) -> None:
    """A plain node, then the master's, is frozen for longer than its lease, replaced, and thawed: nothing of it counts,
    its workers end, it joins anew as a spare; a master that wakes writes nothing and goes. The same behind a dead wire.
    At last an agent is killed while its worker waits inside an all-reduce, which no signal of Python's reaches.
    """
    with fleet(tmp_path, 3) as job:
        runs = {host.name: job.start_on(host, "--nnodes", str(WORLD), script="ddp.py") for host in job.lan.hosts}
        job.stepped(1, nodes=WORLD)
        for host in job.lan.hosts:
            job.wait("node.joined", node=host.name)
        for still, moving in ((Host.freeze, Host.thaw), (Host.cut, Host.heal)):
            plain = next(host for host in job.world() if host is not job.master_host())
            goes_and_comes(job, plain, still, moving)
            goes_and_comes(job, job.master_host(), still, moving)
        terms = [event.term for event in job.events.read()]
        assert terms == sorted(terms), "a deposed master has written"

        job.do(1, "import time; open('asleep', 'w').close(); time.sleep(1000)")
        wait_until((job.cwd / "asleep").exists, "rank 1 to leave rank 0 alone in its all-reduce")
        seq, host = job.events.seen[-1].seq, job.world()[0]
        orphans = [worker.pid for worker in job.workers()]
        for pid in host.processes(AGENT):
            kill(pid)
        runs.pop(host.name).end()
        job.train_again(seq, WORLD)
        assert not gone(orphans), "a worker outlives its agent or its round"
        job.end(*runs.values())


def goes_and_comes(job: Fleet, host: Host, still: Callable[[Host], None], moving: Callable[[Host], None]) -> None:
    """A host is silent until it is given up and the others train; then it is there again, and is fenced."""
    seq, leads, trains = job.events.seen[-1].seq, host is job.master_host(), host in job.world()
    old = job.of("node.joined", host.name)[-1].data.incarnation
    masters = host.processes(MASTER) if leads else {}
    still(host)
    if leads:
        assert job.wait("master.elected", seq).data.host != host.name
    lost = job.lost(host, seq).seq
    if trains:
        job.train_again(lost, WORLD)
    moving(host)
    joined = job.wait("node.joined", lost, node=host.name)
    assert joined.data.incarnation != old
    assert not [worker for worker in job.workers(host) if worker.life == old], "who joins anew has no workers of old"
    told = [event for event in job.events.seen if event.seq > lost and event.id[:2] == (host.name, old)]
    assert not told, told
    wait_until(lambda: not set(masters) & set(host.processes(MASTER)), "the deposed master to end")
    rounds = {worker.round for worker in job.workers()}
    assert len(rounds) == 1, rounds
