"""Input that cannot be used: one clear message, the right exit code, and nothing left behind."""

import asyncio
import os
import sqlite3
import stat
from pathlib import Path

import msgspec
import pytest
from harness import JOBS, Ftrun, ftrun

from ftcore.events.envelope import Unknown
from ftcore.ids import JobName, Seq
from ftcore.logs import open_store
from ftcore.ports import Candidate

WRONG = {
    "unknown-flag": (["--nproc-per-nod", "2", "x.py"], "--help"),
    "no-script": ([], "script"),
    "nproc-word": (["--nproc-per-node", "many", "x.py"], "expected a number, cpu, gpu or auto"),
    "nproc-zero": (["--nproc-per-node", "0", "x.py"], "expected at least 1"),
    "nnodes": (["--nnodes", "3:2", "x.py"], "MIN:MAX"),
    "nnodes-standalone": (["--standalone", "--nnodes", "2", "x.py"], "--standalone means one node"),
    "local-nodes": (["--local-nodes", "0", "x.py"], "at least 1"),
    "local-nodes-few": (["--local-nodes", "2", "--nnodes", "3", "x.py"], "--local-nodes is 2"),
    "node-unit": (["--node-unit", "4", "x.py"], "--node-unit"),
    "max-restarts": (["--max-restarts", "-1", "x.py"], "expected 0 or more"),
    "redirects": (["--redirects", "7", "x.py"], "--redirects: found '7'"),
    "tee": (["--tee", "0:x", "x.py"], "--tee"),
    "ranks": (["--local-ranks-filter", "a", "x.py"], "local ranks such as 0,2"),
    "preload": (["--preload", "json", "--no-preload", "x.py"], "exclude each other"),
    "log-level": (["--log-level", "loud", "x.py"], "invalid choice"),
    "job-name": (["--job", "a/b", "x.py"], "a/b"),
    "store-scheme": (["--store", "sqlit:///tmp/x", "x.py"], "did you mean sqlite"),
    "store-archive": (["--store", "file:///tmp/no.ftlog", "x.py"], "read-only"),
    "policy-missing": (["--policy", "nothing.yaml", "x.py"], "cannot read nothing.yaml"),
    "timing": (["x.py"], "FTCORE_TIMING"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_line_is_told(tmp_path: Path, name: str) -> None:
    """Exit 2 and one message that names the flag, what was found and what is expected."""
    argv, words = WRONG[name]
    with ftrun(tmp_path, timing={"node_lease_s": 1.0} if name == "timing" else None) as job:
        (job.cwd / "x.py").write_text("")
        run = job.start(*argv, script="", job=False, preload=False)
        assert run.end() == 2
        assert words in run.stderr()
        assert len(run.stderr().strip().splitlines()) <= 3
        assert not job.processes()


def test_a_wrong_policy_file_is_told_with_its_line(tmp_path: Path) -> None:
    """File, line, what was found and what was probably meant; once, also with several local nodes."""
    with ftrun(tmp_path) as job:
        (job.cwd / "policy.yaml").write_text("version: 1\nchain:\n- proces_restart\n- stop\n")
        run = job.start("--local-nodes", "2", "--policy", "policy.yaml")
        assert run.end() == 2
        assert "policy.yaml, line 3" in run.stderr() and "process_restart" in run.stderr()
        assert run.stderr().count("proces_restart") == 1


CANNOT_RUN = {
    "missing": ([], "nothing.py", "script nothing.py not found"),
    "directory": ([], ".", "is a directory without __main__.py"),
    "not-executable": (["--no-python"], "./data.txt", "is not executable"),
    "no-program": (["--no-python"], "no-such-program", "not found in PATH"),
    "no-module": (["-m"], "no.such.module", "no"),
}


@pytest.mark.parametrize("name", CANNOT_RUN)
def test_what_cannot_be_run_is_told(tmp_path: Path, name: str) -> None:
    """A script, program or module that is not there is told before anything is started."""
    flags, script, words = CANNOT_RUN[name]
    with ftrun(tmp_path) as job:
        (job.cwd / "data.txt").write_text("x")
        run = job.start(*flags, script, script="")
        assert run.end() == 2
        assert words in run.stderr()
        assert not list(job.home.glob("ftcore/*.db")) and not job.processes()


def test_what_one_node_cannot_run_ends_the_job(tmp_path: Path) -> None:
    """A script that is gone when the next round starts: tried once more, then the job ends and the path is named."""
    with ftrun(tmp_path) as job:
        script = job.cwd / "script.py"
        script.symlink_to(JOBS / "count.py")
        run = job.start("script.py", script="")
        job.stepped(1)
        script.unlink()
        job.do(0, "sys.exit(3)")
        assert run.end() == 1
        assert f"script script.py not found (looked for {script})" in run.stderr()
        assert len([event for event in job.events.read() if event.type == "world.formed"]) == 3


def test_a_preload_that_does_not_exist_is_told(tmp_path: Path) -> None:
    """A module for the warm process that cannot be imported is named."""
    with ftrun(tmp_path) as job:
        run = job.start("--preload", "no_such_module", preload=False)
        assert run.end() in (1, 2)
        assert "no_such_module" in run.stderr()


def store_at(job: Ftrun, path: Path) -> str:
    job.store = f"sqlite://{path}"
    return job.store


@pytest.mark.parametrize("nodes", [[], ["--local-nodes", "2"]], ids=["alone", "local-nodes"])
def test_a_store_that_cannot_be_used_is_told(tmp_path: Path, nodes: list[str]) -> None:
    """A file of another program, a path through a file, a place that is none: exit 2, nothing changed."""
    with ftrun(tmp_path) as job:
        foreign = tmp_path / "foreign.db"
        with sqlite3.connect(foreign) as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
        text = tmp_path / "text.db"
        text.write_text("this is no database " * 100)
        before = foreign.read_bytes()
        for path, words in (
            (foreign, "foreign.db"),
            (text, "text.db"),
            (text / "below", "text.db"),
            (Path("/proc/x"), "/proc/x"),
        ):
            store_at(job, path)
            run = job.start(*nodes)
            assert run.end() == 2, run.stderr()
            assert words in run.stderr()
        assert foreign.read_bytes() == before


def test_a_store_of_another_user_is_told(tmp_path: Path) -> None:
    """A directory without write permission; root may write anywhere, so there an immutable file stands for it."""
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    with ftrun(tmp_path) as job:
        locked = tmp_path / "locked"
        locked.mkdir()
        locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
        store_at(job, locked)
        run = job.start()
        assert run.end() == 2
        assert "locked" in run.stderr()


def test_a_state_home_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """ftcore's own directory lies below a file: exit 2 with the path."""
    with ftrun(tmp_path) as job:
        job.home.write_text("")
        run = job.start("--store", f"sqlite://{tmp_path}/store")
        assert run.end() == 2
        assert "cannot make the directory" in run.stderr()


def test_a_log_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """--log-dir below a file: exit 2 with the path."""
    with ftrun(tmp_path) as job:
        (tmp_path / "file").write_text("")
        run = job.start("--log-dir", str(tmp_path / "file" / "logs"))
        assert run.end() == 2
        assert "cannot make the directory" in run.stderr()


def test_another_command_under_a_living_job_is_refused(tmp_path: Path) -> None:
    """A second ftrun of the same job with another command is refused, and the job goes on."""
    with ftrun(tmp_path) as job:
        first = job.start()
        job.stepped(1)
        for flags in (["--node-id", "other"], ["--local-nodes", "2"]):
            second = job.start(*flags, str(JOBS / "count.py"), "another", "argument", script="")
            assert second.end() == 2
            assert "use another job name" in second.stderr()
        job.steps_on()
        job.finish()
        assert first.end() == 0
        assert len(job.of("world.formed")) == 1


def test_two_jobs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Same user, same state home, other names: each has its own log, and one's fault is not the other's."""
    with ftrun(tmp_path) as one, ftrun(tmp_path / "other", job="two") as two:
        two.env["XDG_STATE_HOME"] = str(one.home)
        two.home, two.store = one.home, f"sqlite://{one.home}/ftcore"
        first, second = one.start(), two.start()
        one.stepped(1)
        two.stepped(1)
        one.do(0, "sys.exit(3)")
        one.stepped(2)
        two.steps_on()
        two.finish()
        assert second.end() == 0
        one.steps_on()
        one.finish()
        assert first.end() == 0
        assert not two.of("incident.opened") and len(one.of("incident.opened")) == 1


def test_a_log_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """An event that this ftcore does not know and may not skip: told with the event's type, and nothing is started."""
    with ftrun(tmp_path) as job:
        first = job.start()
        job.stepped(1)
        job.finish()
        assert first.end() == 0
        append_unknown(job)
        second = job.start()
        code = second.end()
        assert code == 2, (code, second.stderr())
        assert "node.teleported" in second.stderr()
        assert not job.processes("count.py")
        job.unreadable = True


def append_unknown(job: Ftrun) -> None:
    async def append() -> None:
        store = open_store(job.store)
        log = await store.open(JobName(job.job))
        leadership = await log.campaign(Candidate(host="h", pid=os.getpid(), address="unix:none"))
        last = [event async for event in log.read()][-1]
        new = msgspec.structs.replace(
            last,
            seq=Seq(last.seq + 1),
            type="node.teleported",
            term=leadership.term,
            ignorable=False,
            data=Unknown(fields={"node": "a"}),
        )
        await log.append([new], term=leadership.term, expected_seq=last.seq)
        await leadership.resign()
        await log.close()
        await store.close()

    asyncio.run(append())
