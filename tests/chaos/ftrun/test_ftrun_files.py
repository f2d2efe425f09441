"""ftcore's own files on a machine: they belong to one log, outlive a login, and may be removed under a job."""

import contextlib
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from harness import JOB, Ftrun, ftrun, kill, wait_until

from ftcore.events.codec import encode_fact
from ftcore.events.envelope import At, EventId, Fact
from ftcore.events.node import NodeLeft
from ftcore.private import sweep


def fact(node: str, life: str, n: int) -> bytes:
    left = NodeLeft(node=node, incarnation=life, reason="its launcher is gone")
    return encode_fact(Fact(id=EventId(node, life, n), data=left, at=At(wall=1, mono=1, boot="b")))


def test_a_log_gets_an_identity_that_stays(tmp_path: Path) -> None:
    """The first event of a log names it; later terms and runs do not name it anew."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        os.kill(job.master(), 9)
        job.wait("master.elected", job.of("master.elected")[0].seq)
        job.finish()
        assert run.end() == 0
        names = [event.data.log_id for event in job.of("master.elected")]
        assert job.events.read()[0].type == "master.elected"
        assert len(names[0]) == 32 and set(names[1:]) == {""}


def test_one_job_name_in_another_store_reads_none_of_the_others_files(tmp_path: Path) -> None:
    """What an earlier run left in its outbox is not told to the log of another store; its logs are not overwritten."""
    with ftrun(tmp_path, store=f"sqlite://{tmp_path}/one") as job:
        run = job.start("--node-id", "n")
        job.stepped(1)
        job.finish()
        assert run.end() == 0
        identity = job.of("master.elected")[0].data.log_id
    left = job.home / f"ftcore/agents/{JOB}"
    (left / identity).mkdir(exist_ok=True)
    for place in (left, left / identity):
        (place / "n.outbox").write_bytes(fact("n", "old", 1))
    (tmp_path / "cwd/finish").unlink()
    with ftrun(tmp_path, store=f"sqlite://{tmp_path}/two") as job:
        run = job.start("--node-id", "n")
        job.stepped(1)
        job.finish()
        assert run.end() == 0
        assert "old" not in {event.id.incarnation for event in job.events.read()}
        assert job.of("master.elected")[0].data.log_id != identity
        assert len(list(job.home.glob(f"ftcore/logs/{JOB}/*/round_1"))) == 2


def swept(job: Ftrun, *which: str) -> None:
    """Remove files of the job's, as a cleaner would."""
    for pattern in which:
        for path in [*job.home.glob(f"ftcore/{pattern}"), *Path("/var/tmp").glob(f"ftcore-{os.getuid()}/{pattern}")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_sockets_lie_where_no_login_ends(tmp_path: Path) -> None:
    """Beside the log: a directory that goes when its user logs out would take them along."""
    home = short_home()
    with ftrun(tmp_path, timing={"master_idle_s": 5.0}) as job:
        job.home = home
        job.env["XDG_STATE_HOME"], job.store = str(home), f"sqlite://{home}/ftcore"
        run = job.start("--local-nodes", "2")
        job.stepped(1, nodes=2)
        assert job.of("master.elected")[0].data.address.startswith(f"unix:{home}/ftcore/.run/")
        assert len(list((home / "ftcore/.run").glob("*.sock"))) >= 2, "of the master and of the platform"
        job.finish()
        assert run.end() == 0
    shutil.rmtree(home)


ALL_FILES = (".run", "job.db.lock", "job.db.wake", "agents")


@pytest.mark.parametrize(
    ("victim", "which"),
    [
        pytest.param("master", (".run",), marks=pytest.mark.long),
        ("master", ("job.db.lock",)),
        ("master", ALL_FILES),
        ("agent", (".run",)),
        pytest.param("agent", ("job.db.lock",), marks=pytest.mark.long),
        pytest.param("agent", ALL_FILES, marks=pytest.mark.long),
    ],
)
def test_files_are_removed_under_a_job(tmp_path: Path, victim: str, which: tuple[str, ...]) -> None:
    """Sockets, locks and outboxes are swept away, then a process is killed: no healthy node is lost, and what died is
    followed as ever."""
    home = short_home()
    with ftrun(tmp_path) as job:
        job.home = home
        job.env["XDG_STATE_HOME"], job.store = str(home), f"sqlite://{home}/ftcore"
        run = job.start("--local-nodes", "2")
        job.stepped(1, nodes=2)
        wait_until(lambda: len(job.processes("ftcore.cli.master")) == 2, "a standby")
        last = job.events.seen[-1].seq
        swept(job, *which)
        if victim == "master":
            kill(job.master())
            job.wait("master.elected", last)
            job.all_step_on(2, by=120)  # longer than any lease
            assert not job.of("node.lost") and len(job.of("world.formed")) == 1
        else:
            kill(job.agent("node1"))
            job.wait("node.joined", last)
            job.stepped(2, nodes=2)
            assert {event.data.node for event in job.of("node.lost")} == {"node1"}
        job.finish()
        assert run.end() == 0
    shutil.rmtree(home)


def test_the_next_process_sweeps_what_killed_ones_left() -> None:
    """A socket that nobody serves is removed; one that is served, or was just made, is not."""
    folder = short_home()
    dead, young, served = (folder / f"{name}.sock" for name in ("dead", "young", "served"))
    for path in (dead, young):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    for path in (dead, served):
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, (0, 0))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(served))
        listening.listen(0)
        os.utime(served, (0, 0))
        waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) for _ in range(3)]
        for one in waiting:  # its queue is full: it answers nobody, and lives
            with contextlib.suppress(BlockingIOError):
                one.connect(str(served))
        sweep(folder)
        for one in waiting:
            one.close()
    assert sorted(path.name for path in folder.iterdir()) == ["served.sock", "young.sock"]
    shutil.rmtree(folder)


def short_home() -> Path:
    """A state home whose path is as short as a user's: a socket's may have 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="ft-", dir="/tmp"))
