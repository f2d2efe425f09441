"""The log store is full, away, slow: training goes on, recoveries wait, facts are written afterwards, none twice."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_cluster import Cluster, require_etcd
from harness import Ftrun, ftrun, gone, wait_until

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes; needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(place)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a file system of one's own can be mounted by root only")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Take all space that is left."""
    ballast = place / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65536, 4096, 512, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def test_a_full_disk_under_the_log_stops_no_training(tmp_path: Path, small_disk: Path) -> None:
    """A worker dies while the log's disk is full: its peers train on; with space again the recovery happens, once."""
    with ftrun(tmp_path, store=f"sqlite://{small_disk}/store") as job:
        run = job.start("--nproc-per-node", "2")
        stepped = job.stepped(1)
        ballast = fill(small_disk)
        dead = job.pids(1)[1]
        job.do(1, "sys.exit(3)")
        wait_until(lambda: not Path(f"/proc/{dead}").exists(), "the worker's end")
        job.steps_on(0, by=50)
        assert not job.of("worker.failed")
        ballast.unlink()
        job.wait("incident.resolved", stepped.seq)
        job.finish()
        assert run.end() == 0
        assert len(job.of("worker.failed")) == 1 and len(job.of("world.formed")) == 2


def test_a_full_disk_under_the_worker_logs_stops_no_training(tmp_path: Path, small_disk: Path) -> None:
    """Workers' output that cannot be kept is told of once, and costs nothing else."""
    with ftrun(tmp_path) as job:
        run = job.start("--log-dir", str(small_disk / "logs"))
        job.stepped(1)
        fill(small_disk)
        job.do(0, "print('y' * 100_000, flush=True)")
        job.steps_on(by=10)
        job.do(0, "sys.exit(3)")
        job.stepped(2)
        job.finish()
        assert run.end() == 0
        assert "No space left" in run.stderr()


def test_a_full_disk_at_the_start_is_told(tmp_path: Path, small_disk: Path) -> None:
    """There is no room for a log: exit 2 or 3 with the reason."""
    fill(small_disk)
    with ftrun(tmp_path, store=f"sqlite://{small_disk}/store") as job:
        run = job.start()
        assert run.end() in (2, 3)
        assert "No space left" in run.stderr() or "full" in run.stderr()


def test_a_full_disk_under_the_outbox_stops_no_training(tmp_path: Path, small_disk: Path) -> None:
    """An agent that cannot write its own files goes on without them."""
    with ftrun(tmp_path, store=f"sqlite://{tmp_path}/store") as job:
        job.env["XDG_STATE_HOME"] = str(small_disk)
        job.home = small_disk
        run = job.start("--log-dir", str(tmp_path / "logs"))
        job.stepped(1)
        fill(small_disk)
        job.do(0, "sys.exit(3)")
        job.stepped(2)
        job.finish()
        assert run.end() == 0


GONE = "was removed or replaced while in use"


@pytest.mark.parametrize(
    "comes_back", [pytest.param(True, id="put back", marks=pytest.mark.long), pytest.param(False, id="removed")]
)
def test_a_log_that_is_taken_away_stops_no_training(tmp_path: Path, comes_back: bool) -> None:
    """The whole state directory goes under a job: each node says so once, trains on, and nobody spins; put back, it is
    led again, and a worker's end is recovered from. Without it only a signal ends the job."""
    with ftrun(tmp_path) as job:
        run = job.start("--local-nodes", "2")
        stepped = job.stepped(1, nodes=2)
        place, away = job.home / "ftcore", job.home / "away"
        wait_until(lambda: len(using(place / "job.db", job)) == 2, "both candidates to open the log")
        masters = job.processes("ftcore.cli.master")
        place.rename(away)
        if not comes_back:
            shutil.rmtree(away)
            job.unreadable = True
        assert not gone(masters), "a master leads where nothing can be written"
        wait_until(lambda: run.stderr().count(GONE) == 2, "both nodes to say so")
        before, begun = cpu_s(job), time.monotonic()
        job.all_step_on(2, by=100)
        elapsed, after = time.monotonic() - begun, cpu_s(job)
        assert set(before) == set(after), "processes come and go"
        assert not {pid: after[pid] - before[pid] for pid in before if after[pid] - before[pid] > elapsed / 3}
        assert run.stderr().count(GONE) == 2 and not place.exists()
        if comes_back:
            away.rename(place)
            job.wait("master.elected", stepped.seq)
            job.do(1, "sys.exit(3)")
            job.stepped(2, nodes=2)
            job.finish()
            assert run.end() == 0
        else:
            run.signal(signal.SIGINT)
            run.signal(signal.SIGINT)
            assert run.end() == 130


def using(log: Path, job: Ftrun) -> list[int]:
    """The candidates that have the log open: one that starts later would make a new one."""
    found = []
    for pid in job.processes("ftcore.cli.master"):
        with contextlib.suppress(FileNotFoundError):  # it ended meanwhile, or has closed the file
            if str(log) in {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}:
                found.append(pid)
    return found


def cpu_s(job: Ftrun) -> dict[int, float]:
    """Seconds of processor time that each process has used; workers' own included."""
    found = {}
    for pid in job.processes():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


# --- etcd ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def etcd_job(tmp_path: Path) -> Iterator[tuple[Ftrun, Cluster]]:
    require_etcd()
    cluster = Cluster(tmp_path / "etcd", flags=("--unsafe-no-fsync", "--quota-backend-bytes", str(16 * MIB))).start()
    try:
        with ftrun(tmp_path, store=cluster.url("test")) as job:
            yield job, cluster
    finally:
        cluster.stop()


@pytest.mark.etcd
def test_etcd_that_does_not_answer_at_the_start_is_told(tmp_path: Path) -> None:
    """Exit 3 with the endpoint, after a bounded time."""
    with ftrun(tmp_path, store="etcd://127.0.0.1:1/test") as job:
        runs = [job.start(*nodes) for nodes in ([], ["--local-nodes", "2"], ["--nnodes", "2", "--node-rank", "1"])]
        for run in runs:
            assert run.end() == 3
            assert "127.0.0.1:1" in run.stderr()


@pytest.mark.etcd
def test_etcd_away_in_the_middle_stops_no_training(etcd_job: tuple[Ftrun, Cluster]) -> None:
    """etcd is down for longer than all leases while a worker dies: afterwards the job recovers, each fact told once."""
    job, cluster = etcd_job
    run = job.start("--local-nodes", "2")
    stepped = job.stepped(1, nodes=2)
    cluster.members[0].kill()
    (dead,) = job.pids(1, "node1")
    job.steps_on(0, by=100)
    job.do(1, "sys.exit(3)")
    wait_until(lambda: not Path(f"/proc/{dead}").exists(), "the worker's end")
    job.steps_on(0, by=300)
    cluster.members[0].start()
    cluster.members[0].wait_listening()
    job.wait("incident.resolved", stepped.seq)
    job.steps_on(0)
    job.finish()
    assert run.end() == 0
    assert len(job.of("worker.failed")) == 1 and len(job.of("world.formed")) == 2


@pytest.mark.etcd
def test_an_agent_that_dies_while_etcd_is_away_is_replaced_afterwards(etcd_job: tuple[Ftrun, Cluster]) -> None:
    """A replacement that finds no store waits for it; the other node trains on meanwhile."""
    job, cluster = etcd_job
    run = job.start("--local-nodes", "2")
    stepped = job.stepped(1, nodes=2)
    cluster.members[0].kill()
    os.kill(job.agent("node1"), 9)
    job.steps_on(0, by=100)
    cluster.members[0].start()
    cluster.members[0].wait_listening()
    again = job.wait("node.joined", stepped.seq, node="node1")
    job.wait("incident.resolved", again.seq)
    job.finish()
    assert run.end() == 0


@pytest.mark.etcd
def test_a_full_etcd_stops_no_training(etcd_job: tuple[Ftrun, Cluster]) -> None:
    """etcd's quota is used up: training goes on, status says so; with space again the recovery happens."""
    job, cluster = etcd_job
    run = job.start("--nproc-per-node", "2")
    stepped = job.stepped(1)
    fill_etcd(cluster)
    job.do(1, "sys.exit(3)")
    job.steps_on(0, by=50)
    assert "full: training goes on" in job.ftctl("status").stdout
    cluster.ctl("del", "--prefix", "x/")
    cluster.compact()
    cluster.ctl("defrag")
    cluster.ctl("alarm", "disarm")
    job.wait("incident.resolved", stepped.seq)
    job.finish()
    assert run.end() == 0
    assert len(job.of("worker.failed")) == 1


def fill_etcd(cluster: Cluster) -> None:
    """Write until the quota raises its alarm."""
    environ = os.environ | {"ETCDCTL_API": "3"}
    for n in range(1000):
        command = ["etcdctl", "--endpoints", cluster.endpoints, "put", "--", f"x/{n}", "y" * 100_000]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode:
            assert "space" in done.stderr, done.stderr
            return
    raise AssertionError("the quota was never reached")
