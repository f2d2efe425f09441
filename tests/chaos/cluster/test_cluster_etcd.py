"""What etcd goes through while a job trains: training never stops, recoveries wait, and then finish."""

import signal
from pathlib import Path

import pytest
from fleet import MASTER, Fleet, fleet
from harness import is_dead, wait_until
from hosts import Slow

WORLD = 2


def trains(job: Fleet, by: int = 10) -> None:
    """The workers of before live, and make steps."""
    job.all_step_on(WORLD, by)


def fail(job: Fleet) -> None:
    """A worker fails: something to recover from."""
    job.do(1, "sys.exit(3)")
    wait_until(lambda: not (job.cwd / "do.1").exists(), "the worker to fail")


@pytest.mark.timeout(400)
def test_training_outlives_every_trouble_of_etcd(tmp_path: Path) -> None:
    """Its leader dies, two of three members die, all stand still, all die at once: no worker is touched; a worker that
    fails while nothing can be written is restarted once it can; its quota is full, and is cleared.
    """
    flags = ("--quota-backend-bytes", str(16 << 20))
    with fleet(tmp_path, 4, etcd_flags=flags) as job:
        runs = [job.start_on(job[name], "--nnodes", str(WORLD)) for name in ("h1", "h4")]
        seq = job.stepped(1, nodes=WORLD).seq
        first = {worker.pid for worker in job.workers()}

        leader = job.etcd.leader()
        job.etcd.signal(signal.SIGKILL, leader)
        trains(job)
        job.etcd.start(leader)
        job.etcd.signal(signal.SIGSTOP)  # a disk that hangs
        trains(job, 50)
        job.etcd.signal(signal.SIGCONT)
        wait_until(job.etcd.healthy, "etcd")
        assert {worker.pid for worker in job.workers()} == first and not job.of("node.lost")

        down = job.etcd.hosts[1:]
        job.etcd.signal(signal.SIGKILL, *down)
        fail(job)
        assert not job.of("worker.failed")
        job.etcd.start(*down)
        seq = job.train_again(seq, WORLD).seq

        second = {worker.pid for worker in job.workers()}
        job.etcd.signal(signal.SIGKILL)
        for host in job.lan.hosts:
            host.signal(signal.SIGKILL, MASTER)  # nobody leads, and nobody can be elected
        trains(job, 50)
        assert not any(map(is_dead, second))
        job.etcd.start()
        job.wait("master.elected", seq)

        while job.etcd.ctl("put", "/fill", "x" * 100_000).returncode == 0:
            pass
        assert "NOSPACE" in job.etcd.ctl("alarm", "list").stdout
        seq = job.events.seen[-1].seq
        fail(job)
        job.steps_on(0, 10)
        clear(job)
        job.train_again(seq, WORLD)
        job.end(*runs)


def clear(job: Fleet) -> None:
    """What an operator does when etcd's quota is full."""
    job.etcd.ctl("del", "/fill")
    status = job.etcd.ctl("get", "/fill", "--write-out=fields").stdout
    revision = next(line.partition(":")[2].strip() for line in status.splitlines() if line.startswith('"Revision"'))
    job.etcd.ctl("compact", revision)
    for host in job.etcd.hosts:
        job.etcd.ctl("defrag", endpoints=f"{host.address}:2379")
    wait_until(lambda: not job.etcd.ctl("alarm", "disarm").returncode, "the alarm to be disarmed")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_slow_and_lossy_network_loses_no_node(tmp_path: Path) -> None:
    """100 ms there and back, and 5 % of all frames lost, with the default time constants: a worker's failure is
    recovered from, and no node is taken for lost.
    """
    with fleet(
        tmp_path, 3, slow=Slow(0.05, 0.05), etcd_flags=("--heartbeat-interval", "300", "--election-timeout", "3000")
    ) as job:
        runs = [job.start_on(job[name], "--nnodes", str(WORLD)) for name in ("h1", "h2")]
        seq = job.stepped(1, nodes=WORLD).seq
        trains(job, 200)
        fail(job)
        job.train_again(seq, WORLD)
        trains(job, 200)
        assert not job.of("node.lost")
        assert len(job.of("master.elected")) < 4, "masters cannot keep their lease"
        job.end(*runs)
