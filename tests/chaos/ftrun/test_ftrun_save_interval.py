"""The interval between two saves to storage of a real job whose script leaves it to ftcore."""

from pathlib import Path

from harness import Ftrun, ftrun, kill

from ftcore.commands import PaceSaves

TIMING = {"progress_sample_s": 0.2, "heartbeat_s": 0.1, "master_renew_s": 0.2, "node_lease_s": 8.0}
POLICY = "version: 1\njob: {checkpoints: {min_interval: 1s, max_interval: 3s, kept: 9}}\n"


def test_saves_follow_the_chosen_interval(tmp_path: Path) -> None:
    """Both nodes save the same steps: first at the shortest interval, then at one from the measured cost, and after a
    failure at one from the job's own time between failures. Each choice is an event with its figures."""
    with ftrun(tmp_path, timing=TIMING) as job:
        (job.cwd / "policy.yaml").write_text(POLICY)
        flags = ("--local-nodes", "2", "--policy", "policy.yaml", "--checkpoints", "saved")
        run = job.start(*flags, script="registered.py", preload=False, args=("1000000", "fsdp", "auto"))
        first = job.wait("interval.chosen")
        assert (first.data.cost_s, first.data.failures) == (None, 0)
        assert (first.data.interval_s, first.data.bound) == (1.0, "min")
        second = job.wait("interval.chosen", first.seq, failures=0, bound="max")
        assert second.data.cost_s > 0 and second.data.interval_s == 3.0
        job.wait("checkpoint.committed", second.seq)
        kill(job.pids(1)[0])
        third = job.wait("interval.chosen", second.seq, failures=1)
        assert 0 < third.data.mtbf_s <= third.data.trained_s
        job.wait("checkpoint.committed", third.seq)
        assert job.ftctl("--job", job.job, "stop").returncode == 0
        assert run.end() == 5
        assert not job.of("checkpoint.failed")
        assert "save takes" in job.ftctl("--job", job.job, "events", "--type", "interval.chosen").stdout
        assert saved_by_rule(job) >= 3


def saved_by_rule(job: Ftrun) -> int:
    """Count the checkpoints before the stop; each is at a multiple of the interval that was in force."""
    rule, count = (0, 0), 0
    for event in job.events.read():
        if event.type == "operator.commanded":
            return count
        if event.type == "world.formed":
            rule = event.data.persist_every, 0
        elif event.type == "action.ordered" and isinstance(event.data.command, PaceSaves):
            rule = event.data.command.every, event.data.command.since
        elif event.type == "checkpoint.committed" and event.data.step >= rule[1]:
            count += 1
            assert event.data.step % rule[0] == 0
    raise AssertionError("the job was stopped")
