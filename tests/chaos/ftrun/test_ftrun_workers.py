"""Workers that die, in every way a worker can."""

import os
import re
from pathlib import Path

from harness import Ftrun, ftrun, gone, wait_until

WAYS = {
    "sigkill": ("os.kill(os.getpid(), 9)", -9, "SIGKILL"),
    "exception": ("raise ValueError('bad batch')", 1, "ValueError: bad batch"),
    "segfault": ("os.kill(os.getpid(), 11)", -11, "SIGSEGV"),
    "exit": ("sys.exit(3)", 3, "code 3"),
}

FORKS = """
import subprocess
for new in (False, True):
    subprocess.Popen(["sleep", "1000"], start_new_session=new, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
daemon = "import os; os.setsid(); os.fork(); os.closerange(0, 9); import time; time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", daemon])
"""


def policy(job: Ftrun, text: str) -> str:
    path = job.cwd / "policy.yaml"
    path.write_text(f"version: 1\nchain:\n{text}")
    return f"--policy={path}"


def test_a_worker_may_die_in_every_way(tmp_path: Path) -> None:
    """Each death is told with its code and cause; training goes on each time, from where it was."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "2")
        for round_, (code, exitcode, word) in enumerate(WAYS.values(), start=1):
            job.stepped(round_)
            job.steps_on(1)
            before = job.step(1)
            job.do(1, code)
            failed = job.wait("worker.failed", round=round_)
            assert (failed.data.rank, failed.data.exitcode) == (1, exitcode)
            assert [last.rank for last in failed.data.last] == [1, 0]
            assert before <= failed.data.last[0].step == failed.data.step
            opened = job.wait("incident.opened", failed.seq)
            assert word in opened.data.fault.summary
            assert opened.data.fault.ranks[0] == 1
            resolved = job.wait("incident.resolved", opened.seq)
            assert (resolved.data.policy, resolved.data.outcome) == ("process_restart", "stepped")
            assert not gone(job.pids(round_))
            assert job.step(1) > before
        job.finish()
        assert run.end() == 0
        assert "resolved by process_restart" in run.stderr()


def test_two_workers_at_once_are_one_incident(tmp_path: Path) -> None:
    """Two deaths of one moment open one incident, whoever is told first."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "3")
        job.stepped(1)
        for pid in job.pids(1)[1:]:
            os.kill(pid, 9)
        resolved = job.wait("incident.resolved")
        job.stepped(2)
        job.finish()
        assert run.end() == 0
        assert len(job.of("incident.opened")) == 1
        assert resolved.data.outcome == "stepped"
        assert {event.data.rank for event in job.of("worker.failed")} <= {1, 2}


def test_the_victims_of_a_dead_rank_are_not_blamed(tmp_path: Path) -> None:
    """Under DDP the other rank fails as well, of its broken connection; the one that died first is named."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "2", script="ddp.py", preload=False)
        after = 0
        for round_, code in enumerate(("os.kill(os.getpid(), 9)", "raise KeyError('label')"), start=1):
            job.stepped(round_)
            job.do(1, code)
            resolved = job.wait("incident.resolved", after)
            after = resolved.seq
            assert resolved.data.steps_lost in (None, 0, 1)
        job.finish()
        assert run.end() == 0
        readings = [e for e in job.events.read() if e.type in ("incident.opened", "incident.rediagnosed")]
        last = {reading.incident: reading.data.fault for reading in readings}
        assert [fault.ranks[0] for fault in last.values()] == [1, 1]
        assert [fault.cls for fault in last.values()] == ["signal-preemption", "user-code"]


def test_a_spent_budget_ends_the_job_with_advice(tmp_path: Path) -> None:
    """With one restart allowed the second death ends the job: exit 1, both verdicts recorded, and what to look at."""
    with ftrun(tmp_path) as job:
        run = job.start("--max-restarts", "1")
        for round_ in (1, 2):
            job.stepped(round_)
            job.do(0, "os.kill(os.getpid(), 9)")
        assert run.end() == 1
        finished = job.wait("job.finished")
        assert (finished.data.outcome, finished.data.exit_code) == ("failed", 1)
        asked = [e.data for e in job.of("policy.considered") if not e.data.reason.startswith("needs ")]
        verdicts = [(verdict.policy, verdict.verdict) for verdict in asked]
        assert verdicts[:2] == [("process_restart", "take"), ("process_restart", "pass")]
        assert verdicts[-1] == ("stop", "take")
        assert "budget spent: 1 of 1 restarts" in run.stderr()
        assert "time limit of the scheduler, an operator" in run.stderr() and "ftctl explain --job job" in run.stderr()


def test_a_fault_of_the_script_that_repeats_ends_the_job(tmp_path: Path) -> None:
    """The same exception at the same step twice: no third try, and the user is told what to fix."""
    with ftrun(tmp_path) as job:
        job.always(0, "if step == 3: raise ValueError('no such label')")
        run = job.start()
        assert run.end() == 1
        assert len(job.events.read()) and len(job.of("world.formed")) == 2
        assert "ValueError: no such label" in run.stderr() and "fix the script" in run.stderr()
        reasons = [e.data.reason for e in job.of("policy.considered") if e.data.policy == "process_restart"]
        assert "2 times in a row at the start" in reasons[1]


def test_backoff_grows_without_progress(tmp_path: Path) -> None:
    """Attempts that lead to no step wait ever longer; the first attempt does not wait."""
    with ftrun(tmp_path) as job:
        job.always(0, "os.kill(os.getpid(), 9)")
        chosen = policy(job, "- process_restart: {backoff: 100ms, max_restarts: 4, same_fault: 4}\n- stop\n")
        run = job.start(chosen)
        assert run.end() == 1
        waits = [e.data.wait_s for e in job.events.read() if e.type == "policy.considered" and e.data.verdict == "take"]
        assert waits[0] == 0 and waits[1:4] == sorted(waits[1:4]) and waits[3] >= 0.4
        assert len(job.of("world.formed")) == 5


def test_a_worker_that_ignores_term_is_killed_after_the_grace(tmp_path: Path) -> None:
    """The grace of the policy is waited for, then the worker is killed, and the next round starts only then."""
    with ftrun(tmp_path) as job:
        job.on_term(0, "pass")
        run = job.start(
            policy(job, "- process_restart: {grace: 500ms}\n- stop: {grace: 500ms}\n"), "--nproc-per-node=2"
        )
        job.stepped(1)
        job.do(1, "sys.exit(1)")
        stopped = job.wait("workers.stopped")
        assert stopped.data.exitcodes == (-9, None)
        job.stepped(2)
        job.finish()
        assert run.end() == 0


def test_what_workers_fork_ends_with_them(tmp_path: Path) -> None:
    """Children of a worker, in its session or in one of their own, are gone after a restart and at the end."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        job.do(0, FORKS)
        wait_until(lambda: len(sleepers(job)) == 4, "four children")
        first = sleepers(job)
        job.steps_on()
        job.do(0, "sys.exit(1)")
        job.stepped(2)
        assert not gone(first, 0.0)
        job.do(0, FORKS)
        wait_until(lambda: len(sleepers(job)) == 4, "four children")
        job.steps_on()
        job.finish()
        assert run.end() == 0
        assert not sleepers(job)


def sleepers(job: Ftrun) -> dict[int, str]:
    return {pid: line for pid, line in job.processes().items() if re.search(r"sleep[ (]1000", line)}


def test_output_of_any_shape_is_survived(tmp_path: Path) -> None:
    """Ten megabytes without a newline, bytes that are no text: the job goes on and the file has all of it."""
    with ftrun(tmp_path) as job:
        run = job.start()
        job.stepped(1)
        job.do(0, "sys.stdout.write('x' * 10_000_000); sys.stdout.flush(); os.write(1, bytes(range(256)))")
        job.steps_on()
        job.do(0, "sys.exit(1)")
        job.stepped(2)
        job.finish()
        assert run.end() == 0
        assert run.stdout().count("x") >= 10_000_000 or "bytes of output are missing here" in run.stdout()
        (log,) = job.home.glob("ftcore/logs/job/*/round_1/rank_0/stdout.log")
        assert log.read_bytes().count(b"x") >= 10_000_000
