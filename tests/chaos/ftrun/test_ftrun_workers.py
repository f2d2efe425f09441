"""Workers that die, in every way a worker can."""

import signal
from pathlib import Path

import pytest
from harness import ftrun, gone

WAYS = {
    "sigkill": ("os.kill(os.getpid(), 9)", -9, "SIGKILL"),
    "exception": ("raise ValueError('bad batch')", 1, "ValueError: bad batch"),
    "segfault": ("os.kill(os.getpid(), 11)", -11, "SIGSEGV"),
    "exit": ("sys.exit(3)", 3, "code 3"),
}


def test_a_worker_may_die_in_every_way(tmp_path: Path) -> None:
    """Each death is told with its code and cause; training goes on each time, from where it was."""
    with ftrun(tmp_path) as job:
        run = job.start("--nproc-per-node", "2")
        round_ = 1
        for code, exitcode, word in WAYS.values():
            job.stepped(round_)
            job.steps_on(1)
            before = job.step(1)
            job.do(1, code)
            failed = job.wait("worker.failed", round=round_)
            assert (failed.data.rank, failed.data.exitcode) == (1, exitcode)
            opened = job.wait("incident.opened", failed.seq)
            assert word in opened.data.fault.summary
            assert opened.data.fault.ranks[0] == 1
            resolved = job.wait("incident.resolved", opened.seq)
            assert resolved.data.policy == "process_restart" and resolved.data.outcome == "stepped"
            assert not gone(job.pids(round_))
            assert job.step(1) > before
            round_ += 1
        job.finish()
        assert run.end() == 0
        assert "resolved by process_restart" in run.stderr()
