"""The log goes back or vanishes under a running job: no world begins beside one that may live; an operator decides."""

import asyncio
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_cluster import Cluster, require_etcd
from harness import Ftrun, checked, gone, kill, wait_until

from ftcore.errors import FtcoreError
from ftcore.events.envelope import Event
from ftcore.ids import JobName
from ftcore.logs import open_store


class Lost(Ftrun):
    """A job whose log is taken back: what is followed from then on is what the store holds then."""

    def look_away(self) -> None:
        """Follow the log no more: it is about to be taken back."""
        assert self._watch is not None
        self._watch.close()
        self._watch = None

    def now(self) -> list[Event]:
        """The log as it is, read anew."""

        async def read() -> list[Event]:
            store = open_store(self.store)
            try:
                log = await store.open(JobName(self.job))
                return [event async for event in log.read()]
            except FtcoreError:  # it is not there, or changes under the reader
                return []
            finally:
                await store.close()

        return asyncio.run(read())

    def stuck(self) -> Event:
        """Wait until the log says that a node contradicts it."""

        def found() -> list[Event]:
            return [event for event in self.now() if event.type == "log.contradicted"]

        wait_until(lambda: bool(found()), "log.contradicted")
        return found()[0]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[Ftrun, Cluster]]:
    require_etcd()
    cluster = Cluster(tmp_path / "etcd", flags=("--unsafe-no-fsync",)).start()
    try:
        with checked(Lost(tmp_path, cluster.url("test"))) as made:
            yield made, cluster
    finally:
        cluster.stop()


def lose(job: Lost, dead: int) -> Event:
    """Kill a worker of the old world and wait until the job is stuck; nothing was started meanwhile."""
    os.kill(dead, 9)
    stuck = job.stuck()
    after = [event.type for event in job.now() if event.seq > stuck.seq]
    assert not {"world.formed", "round.planned", "action.ordered"} & set(after)
    assert "ftctl resume" in stuck.data.reason and "ftctl stop" in stuck.data.reason
    return stuck


def resume(job: Lost, rounds_before: int) -> None:
    """The way out: one world, and the workers of the old one are gone before."""
    said = job.ftctl("resume", "--job", job.job)
    assert said.returncode == 0, said.stderr
    formed = lambda: [event.data.round for event in job.now() if event.type == "world.formed"]  # noqa: E731
    wait_until(lambda: len(formed()) > rounds_before, "a world after the resumption")
    job.steps_on(0)
    job.steps_on(1)
    job.finish()
    assert job.runs[0].end() == 0


@pytest.mark.etcd
@pytest.mark.parametrize("way", ["resume", pytest.param("stop", marks=pytest.mark.long)])
def test_keys_are_deleted_under_a_job(job: tuple[Lost, Cluster], way: str) -> None:
    """A new log is recognised by its identity: it forms no world before an operator has said so."""
    lost, cluster = job
    run = lost.start("--local-nodes", "2")
    lost.stepped(1, nodes=2)
    dead = lost.pids(1, "node1")[0]
    lost.look_away()
    cluster.ctl("del", "--prefix", "/test/")
    stuck = lose(lost, dead)
    assert "deleted or replaced" in stuck.data.reason
    wait_until(lambda: "the job is stuck" in run.stderr(), "the nodes to say so")
    assert '"stuck"' in lost.ftctl("status", "--job", lost.job, "--format", "json").stdout
    if way == "resume":
        resume(lost, 0)
    else:
        assert lost.ftctl("stop", "--job", lost.job).returncode == 0
        assert run.end() == 5
        assert not [event for event in lost.now() if event.type == "world.formed"]
        again = lost.start("--local-nodes", "2")
        wait_until(lambda: bool([event for event in lost.now() if event.type == "world.formed"]), "a run of its own")
        lost.steps_on(0)
        lost.finish()
        assert again.end() == 0


@pytest.mark.etcd
def test_etcd_is_restored_from_an_older_copy_under_a_job(job: tuple[Lost, Cluster], tmp_path: Path) -> None:
    """A log that went back is recognised by what the nodes have seen of it."""
    lost, cluster = job
    member, data = cluster.members[0], tmp_path / "etcd/m0"
    lost.start("--local-nodes", "2")
    lost.stepped(1, nodes=2)
    member.kill()
    shutil.copytree(data, tmp_path / "backup")
    member.start()
    member.wait_listening()
    lost.do(1, "sys.exit(3)")
    resolved = lost.wait("incident.resolved")
    lost.steps_on(0, by=100)  # so that every node was told how far the log is durable
    dead = lost.pids(2, "node1")[0]
    lost.look_away()
    member.kill()
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "backup", data)
    member.start()
    member.wait_listening()
    stuck = lose(lost, dead)
    assert "older copy" in stuck.data.reason and stuck.data.seq >= resolved.seq
    resume(lost, 1)


def test_a_sqlite_log_is_overwritten_with_an_older_copy(tmp_path: Path) -> None:
    """The same for a file whose content is put back in place."""
    with checked(Lost(tmp_path)) as lost:
        lost.start("--local-nodes", "2")
        lost.stepped(1, nodes=2)
        log, copy = lost.home / "ftcore/job.db", tmp_path / "copy.db"
        with sqlite3.connect(log) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        lost.do(1, "sys.exit(3)")
        lost.wait("incident.resolved")
        lost.steps_on(0, by=100)
        dead = lost.pids(2, "node1")[0]
        lost.look_away()
        with sqlite3.connect(copy) as source, sqlite3.connect(log) as target:
            source.backup(target)
        stuck = lose(lost, dead)
        assert "older copy" in stuck.data.reason
        resume(lost, 1)


@pytest.mark.parametrize("way", [pytest.param("resume", marks=pytest.mark.long), "stop"])
def test_a_log_is_overwritten_with_a_copy_in_which_the_job_had_ended(tmp_path: Path, way: str) -> None:
    """The copy is of the end of an earlier run: nothing is begun or ended for it before an operator has decided."""
    with checked(Lost(tmp_path)) as lost:
        first = lost.start("--local-nodes", "2")
        lost.stepped(1, nodes=2)
        lost.finish()
        assert first.end() == 0
        wait_until(lambda: not lost.processes("ftcore.cli.master"), "the masters to end")
        log, copy = lost.home / "ftcore/job.db", tmp_path / "copy.db"
        with sqlite3.connect(log) as source, sqlite3.connect(copy) as target:
            source.backup(target)
        (lost.cwd / "finish").unlink()
        ended = lost.wait("job.finished").seq
        lost.runs.clear()
        run = lost.start("--local-nodes", "2")
        started = lost.wait("workers.stepped", ended).data.round
        lost.steps_on(0, by=100)
        lost.steps_on(1)
        dead = lost.pids(started, "node1")[0]
        lost.look_away()
        with sqlite3.connect(copy) as source, sqlite3.connect(log) as target:
            source.backup(target)
        os.kill(dead, 9)
        stuck = lost.stuck()
        assert "older copy" in stuck.data.reason and stuck.data.seq > ended
        assert "ftctl resume" in stuck.data.reason and "stop ftrun on each host" in stuck.data.reason
        begun = lambda: [event for event in lost.now() if event.seq > ended and event.type == "world.formed"]  # noqa: E731
        assert not begun()
        if way == "stop":
            run.signal(signal.SIGTERM)
            assert run.end() == 5
            assert not begun()
            return
        said = lost.ftctl("resume", "--job", lost.job)
        assert said.returncode == 0 and "a new run" in said.stderr, said.stderr
        wait_until(lambda: bool(begun()), "a world of the new run")
        lost.steps_on(0)
        lost.steps_on(1)
        lost.finish()
        assert run.end() == 0
        assert [event.data.run for event in lost.now() if event.type == "job.submitted"] == [1, 2]
        assert len([event for event in lost.now() if event.type == "log.contradicted"]) == 1


def test_a_damaged_log_is_salvaged_and_the_same_command_line_goes_on(tmp_path: Path) -> None:
    """The command that meets the damage names the tool; what can be read becomes the log, and the job ends well."""
    with checked(Lost(tmp_path)) as lost:
        run = lost.start("--nproc-per-node", "2")
        formed = lost.stepped(1)
        lost.look_away()
        run.signal(signal.SIGKILL)
        run.end()
        log = lost.home / "ftcore/job.db"
        masters = list(lost.processes("ftcore.cli.master"))
        for master in masters:
            kill(master)
        assert not gone(masters)
        with sqlite3.connect(log) as db:
            db.execute("UPDATE events SET body = zeroblob(50) WHERE seq = ?", (formed.seq,))
        again = lost.start("--nproc-per-node", "2")
        assert again.end() != 0 and "ftctl" in again.stderr() and "salvage" in again.stderr()
        done = lost.ftctl("--job", lost.job, "salvage")
        assert done.returncode == 0 and "same command line" in done.stderr, done.stderr
        step = lost.step()
        last = lost.start("--nproc-per-node", "2")
        wait_until(lambda: lost.step() > step + 3, "training to go on")
        lost.finish()
        assert last.end() == 0
        assert "log.salvaged" in [event.type for event in lost.now()]
