"""Prepared workers beside running ones: a restart of all ranks begins without the script's set-up."""

from pathlib import Path

from harness import Ftrun, ftrun, kill, wait_until

RESTARTS = "version: 1\nchain:\n- process_restart\n- stop\n"
STEPS = 4000


def prepared(job: Ftrun, former: set[int]) -> set[int]:
    """The two processes, beside former ones, that have come to where they need their rank."""

    def found() -> set[int]:
        return {int(path.suffix[1:]) for path in job.cwd.glob("set_up.*")} - former

    wait_until(lambda: len(found()) == 2, "two prepared workers")
    return found()


def test_a_restart_takes_prepared_workers(tmp_path: Path) -> None:
    """Twice: the next ones are prepared after the restart; one that is killed while it waits is no fault. All end with
    the job."""
    with ftrun(tmp_path) as job:
        job.drop("policy.yaml", RESTARTS)
        flags = ("--nproc-per-node=2", "--prepare=always", "--policy", "policy.yaml")
        run = job.start(*flags, script="resizes.py", preload=False, args=(str(STEPS),))
        job.stepped(1)
        former: set[int] = set()
        for round_ in (1, 2):
            running = {*job.pids(round_)}
            former |= running
            waiting = prepared(job, former)
            job.all_step_on(2)
            kill(min(running))
            job.stepped(round_ + 1)
            [started] = [event.data for event in job.of("workers.started") if event.data.round == round_ + 1]
            assert (started.how, {*started.pids}) == ("prepared", waiting)
        kill(min(prepared(job, former | {*job.pids(3)})))
        job.all_step_on(2)
        assert len(job.of("incident.opened")) == 2
        assert job.ftctl("--job", "job", "stop", "--why", "a test").returncode == 0
        assert run.end() == 5
