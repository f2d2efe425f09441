"""What torchrun's users write on the command line does what they expect; the console and the address may fail."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from etcd_cluster import free_ports
from harness import ftrun, kill

SAY = "print(f'out{RANK}', flush=True); print(f'err{RANK}', file=sys.stderr, flush=True)"


def spoken(tmp_path: Path, *flags: str) -> tuple[str, str, Path]:
    """What a job of two workers shows on stdout and stderr when both speak, and where its logs are."""
    with ftrun(tmp_path) as job:
        for rank in (0, 1):
            job.do(rank, SAY)
        run = job.start("--nproc-per-node", "2", *flags)
        job.stepped(1)
        job.finish()
        assert run.end() == 0
        return run.stdout(), run.stderr(), next(job.home.glob("ftcore/logs/job/*/round_1"))


CASES = {
    "nothing": ([], {"out0", "out1", "err0", "err1"}, False),
    "redirects": (["--redirects", "3"], set(), False),
    "redirects-one": (["-r", "1:1"], {"out0", "err0", "err1"}, False),
    "tee": (["--tee", "3"], {"out0", "out1", "err0", "err1"}, True),
    "filter": (["--local-ranks-filter", "1"], {"out1", "err1"}, False),
}


@pytest.mark.parametrize("name", CASES)
def test_workers_lines_are_shown_as_torchrun_would(tmp_path: Path, name: str) -> None:
    """Files have everything always; the console has what the flags say, with a prefix under --tee."""
    flags, shown, prefixed = CASES[name]
    out, err, logs = spoken(tmp_path, *flags)
    words = {"out0", "out1", "err0", "err1"}
    assert {word for word in words if word in (out if word.startswith("out") else err)} == shown
    assert ("[default1]:out1" in out) == prefixed
    for rank in (0, 1):
        assert f"out{rank}" in (logs / f"rank_{rank}/stdout.log").read_text()
        assert f"err{rank}" in (logs / f"rank_{rank}/stderr.log").read_text()


def test_torchruns_other_flags_and_variables_are_taken(tmp_path: Path) -> None:
    """Flags with nothing to set are noted once; underscores and PET_ variables work; the rendezvous id is the job."""
    with ftrun(tmp_path) as job:
        job.env |= {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "1"}
        flags = "--rdzv_backend=c10d --rdzv-conf timeout=9 --monitor-interval 5 --start-method spawn --master-addr here"
        run = job.start(*flags.split(), "--rdzv_id", "job", "--nnodes=1", job=False)
        job.stepped(1)
        assert len(job.pids(1)) == 2
        job.finish()
        assert run.end() == 0
        for flag in ("--rdzv-backend", "--rdzv-conf", "--monitor-interval", "--start-method", "--master-addr"):
            assert run.stderr().count(f"{flag} is ignored") == 1


def test_a_module_and_a_program_are_run(tmp_path: Path) -> None:
    """``-m`` runs a module as python would, ``--no-python`` a program; both get torchrun's environment."""
    with ftrun(tmp_path) as job:
        (job.cwd / "package").mkdir()
        (job.cwd / "package/__init__.py").write_text("")
        (job.cwd / "package/main.py").write_text("import os, sys; print('module', os.environ['RANK'], sys.argv[1:])")
        run = job.start("-m", "package.main", "--flag", script="")
        assert run.end() == 0
        assert "module 0 ['--flag']" in run.stdout()
        run = job.start("--no-python", "sh", "-c", "echo program $WORLD_SIZE $0", "--x", script="")
        assert run.end() == 0
        assert "program 1 --x" in run.stdout()
        job.wait("job.finished")


def test_an_elastic_job_starts_with_its_minimum(tmp_path: Path) -> None:
    """With --nnodes 1:2 one node is enough once the join window is over."""
    with ftrun(tmp_path, timing={"join_window_s": 0.5}) as job:
        run = job.start("--nnodes", "1:2")
        formed = job.wait("world.formed")
        assert formed.data.nodes == 1
        job.stepped(1)
        job.finish()
        assert run.end() == 0


def test_without_preload_workers_are_fresh_interpreters(tmp_path: Path) -> None:
    """``--no-preload`` says so in the log, and recovers as well."""
    with ftrun(tmp_path) as job:
        run = job.start("--no-preload", preload=False)
        assert job.wait("workers.started").data.how.startswith("exec")
        job.stepped(1)
        job.do(0, "sys.exit(3)")
        job.stepped(2)
        job.finish()
        assert run.end() == 0


def test_a_console_that_is_closed_ends_nothing(tmp_path: Path) -> None:
    """``ftrun 2>&1 | head -1``: the job goes on, recovers, and its files have what nobody read."""
    with ftrun(tmp_path) as job:
        run = job.start(stderr=subprocess.STDOUT, stdout=subprocess.PIPE, read=False)
        assert run.process.stdout is not None
        run.process.stdout.readline()
        run.process.stdout.close()
        job.stepped(1)
        job.do(0, SAY + "; sys.exit(3)")
        job.stepped(2)
        job.do(0, SAY)
        job.steps_on()
        job.finish()
        assert run.end() == 0
        assert "out0" in next(job.home.glob("ftcore/logs/job/*/round_2/rank_0/stdout.log")).read_text()


def test_a_console_that_nobody_reads_holds_up_nothing(tmp_path: Path) -> None:
    """A pipe that is full and stays so: workers print megabytes, train and finish."""
    with ftrun(tmp_path) as job:
        run = job.start(stderr=subprocess.STDOUT, stdout=subprocess.PIPE, read=False)
        job.stepped(1)
        job.do(0, "print('z' * 3_000_000, flush=True)")
        job.steps_on(by=10)
        job.do(0, "sys.exit(3)")
        job.stepped(2)
        job.finish()
        assert run.end() == 0
        assert run.process.stdout is not None
        run.process.stdout.close()


def test_a_master_by_hand_leads_and_serves_agents(tmp_path: Path) -> None:
    """A process with --leadership only leads; agents that may not lead find it and train."""
    with ftrun(tmp_path) as job:
        master = job.start("--leadership", "only")
        job.wait("master.elected")
        run = job.start("--leadership", "never")
        job.stepped(1)
        assert not job.processes("ftcore.cli.master")
        job.finish()
        assert (run.end(), master.end()) == (0, 0)


def test_an_address_that_is_taken_is_told(tmp_path: Path) -> None:
    """A master that cannot listen where it was told says so and ends."""
    with ftrun(tmp_path) as job, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "ftcore.cli.master", "--store", job.store, "--job", "job"]
        command += ["--listen", f"127.0.0.1:{port}"]
        done = subprocess.run(
            command, env=job.env, cwd=job.cwd, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 3
        assert "cannot listen on" in done.stderr and "choose another" in done.stderr
        assert "Traceback" not in done.stderr


def test_help_is_no_error(tmp_path: Path) -> None:
    """``--help`` exits 0 and shows examples and exit codes."""
    with ftrun(tmp_path) as job:
        run = job.start("--help", script="", job=False, preload=False)
        assert run.end() == 0
        assert "examples:" in run.stdout() and "exit codes:" in run.stdout()


@pytest.mark.parametrize(
    ("flags", "script", "words"),
    [
        ((), "missing.py", "missing.py"),
        (("--store", "redis://host/x"), "count.py", "redis"),
        (("--store", "sqlite://elsewhere/x"), "count.py", "names the host"),
        (("--nproc-per-node", "0"), "count.py", "at least 1"),
        (("--node-labels", "oops"), "count.py", "--node-labels"),
        (("--tee", "7"), "count.py", "--tee"),
        (("--local-nodes", "2"), "missing.py", "missing.py"),
    ],
)
def test_a_command_that_is_refused_leaves_nothing(
    tmp_path: Path, flags: tuple[str, ...], script: str, words: str
) -> None:
    """Exit code 2, the reason, and nothing on disk."""
    with ftrun(tmp_path) as job:
        run = job.start(*flags, script=script)
        assert run.end() == 2
        assert words in run.stderr()
        assert not job.home.exists() and not list(job.cwd.iterdir())


def test_lines_are_copied_and_teed_with_the_users_prefix(tmp_path: Path) -> None:
    """Lines with one of the texts, of all ranks, go to a file of the round too."""
    with ftrun(tmp_path) as job:
        job.env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "<${rank}>"
        run = job.start("--nproc-per-node", "2", "--tee", "1", "--duplicate-stdout-filters", "apple,pear")
        job.stepped(1)
        for rank, word in enumerate(("apple", "pear")):
            job.do(rank, f"print('{word} {rank}\\nplum')")
        job.steps_on(0)
        job.steps_on(1)
        job.finish()
        assert run.end() == 0
        [copied] = job.home.glob("ftcore/logs/job/*/round_1/filtered_stdout.log")
        assert sorted(copied.read_text().splitlines()) == ["<0>apple 0", "<1>pear 1"]
        assert "<1>plum" in run.stdout()


def test_signals_and_the_shutdown_timeout_of_the_user(tmp_path: Path) -> None:
    """A signal that is named ends the job in order; workers that ignore SIGTERM are killed after the time given."""
    with ftrun(tmp_path) as job:
        job.on_term(0, "None")
        run = job.start("--signals-to-handle", "SIGUSR1", "--shutdown-timeout", "1")
        started = job.stepped(1)
        run.signal(signal.SIGUSR1)
        assert run.end() == 5
        taken = [event.data for event in job.of("policy.considered") if event.data.verdict == "take"]
        assert [plan.grace_s for plan in taken] == [1.0]
        assert job.wait("workers.stopped", started.seq).data.exitcodes == (-9,)


def test_a_script_finds_its_store_at_the_given_port(tmp_path: Path) -> None:
    """``init_method=tcp://HOST:PORT`` with ``--master-port PORT`` works as under torchrun, also after a restart."""
    [port] = free_ports(1)
    with ftrun(tmp_path) as job:
        job.env["INIT_METHOD"] = f"tcp://localhost:{port}"
        run = job.start("--nproc-per-node", "2", "--master-port", str(port), script="ddp.py")
        job.stepped(1)
        kill(job.pids(1)[1])
        job.stepped(2)
        job.finish()
        assert run.end() == 0
        assert {event.data.port for event in job.of("store.opened")} == {port}
        assert "--master-port" not in run.stderr()


def test_a_given_port_that_is_in_use_costs_no_job(tmp_path: Path) -> None:
    """The store takes a free port and a note says so; workers find it by ``MASTER_PORT``. 65536 is refused."""
    with socket.create_server(("127.0.0.1", 0)) as other, ftrun(tmp_path) as job:
        port = other.getsockname()[1]
        run = job.start("--nproc-per-node", "2", "--master-port", str(port), script="ddp.py")
        job.stepped(1)
        job.finish()
        assert run.end() == 0
        assert f"--master-port {port} is in use" in run.stderr()
        refused = job.start("--master-port", "65536")
        assert refused.end() == 2 and "--master-port" in refused.stderr()
