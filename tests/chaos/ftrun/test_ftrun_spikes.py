"""Losses that jump or are not a number: found in the worker, told by the agent, answered by the chain.

The script and the policy file are those of the how-to, word for word but for what a test says.
"""

import json
import re
from pathlib import Path

from harness import Ftrun, Run, ftrun

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "roll-back-before-a-loss-spike.md"


def block(language: str) -> str:
    """The page's block of that language."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def changed(text: str, *pairs: tuple[str, str]) -> str:
    """The text with each of these in place of what stands there once."""
    for before, after in pairs:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


def start(job: Ftrun, *flags: str, script: str, policy: str = "") -> Run:
    (job.cwd / "train.py").write_text(script)
    if policy:
        (job.cwd / "spikes.yaml").write_text(policy)
        flags = ("--policy", "spikes.yaml", *flags)
    return job.start(*flags, "train.py", script="", preload=False)


def last_loss(run: Run) -> float:
    (said,) = re.findall(r"ends with loss (\S+)", run.stdout())
    return float(said)


def test_a_spike_is_gone_back_from(tmp_path: Path) -> None:
    """Two nodes with two ranks each: one incident, back to the right checkpoint, the data left out, a sane end."""
    with ftrun(tmp_path) as job:
        run = start(job, "--local-nodes", "2", "--nproc-per-node", "2", script=block("python"), policy=block("yaml"))
        seen = job.wait("fault.observed")
        assert (seen.data.source, seen.data.kind, seen.data.step) == ("detector", "loss-spike", 149)
        assert seen.data.values["at"] == 150
        assert seen.data.values["loss"] > 1000 * seen.data.values["usual"]
        back = job.wait("job.rolled_back")
        assert back.data.step == 120
        skipped = job.wait("data.skipped")
        assert (skipped.data.step, skipped.data.amount, skipped.data.unit) == (120, 50, "batches")
        assert run.end() == 0
        assert "goes on after step 120 with batch 171" in run.stdout()
        assert last_loss(run) < 0.05
        assert [event.incident for event in job.of("incident.opened")] == ["i1"]
        (resolved,) = job.of("incident.resolved")
        assert (resolved.data.policy, resolved.data.outcome) == ("rollback_and_skip", "stepped")
        committed = [(event.data.round, event.data.step) for event in job.of("checkpoint.committed")]
        assert committed == sorted(set(committed))
        assert [step for round_, step in committed if round_ == 2] == list(range(130, 301, 10))
        assert job.of("checkpoint.committed")[0].data.where == "checkpoints/10.pt"


def test_ranks_agree_before_the_job_goes_back(tmp_path: Path) -> None:
    """Two nodes with two ranks each: the loss of one rank jumps, and nothing happens; then that of all does."""
    with ftrun(tmp_path) as job:
        alone = ("loss=loss.item())", "loss=loss.item() * (1000 if RANK == 1 and step == 150 else 1))")
        script = changed(block("python"), ("range(150, 153)", "range(200, 203)"), alone)
        run = start(job, "--local-nodes", "2", "--nproc-per-node", "2", script=script, policy=block("yaml"))
        assert run.end() == 0
        first, second = job.of("fault.observed")[:2]
        seen = first.data.values
        assert (first.data.rank, seen["at"], seen["ranks"], seen["reporting"]) == (1, 150, 1, 2)
        assert second.data.values["at"] == 200, "the same node, too, although it has just reported one"
        (opened,) = job.of("incident.opened")
        assert opened.data.fault.step == 199
        (back,) = job.of("job.rolled_back")
        assert back.data.step == 170
        assert last_loss(run) < 0.05


def test_by_default_training_goes_on(tmp_path: Path) -> None:
    """Without a policy for it the same spike is a warning that nobody takes: one incident a kind, one round."""
    with ftrun(tmp_path) as job:
        run = start(job, "--local-nodes", "2", script=block("python"))
        assert run.end() == 0
        kinds = [event.data.kind for event in job.of("fault.observed")]
        assert set(kinds) == {"loss-spike", "loss-divergence"}
        assert len(kinds) == 4, "each of the nodes tells both once"
        opened = job.of("incident.opened")
        assert [event.data.fault.detail for event in opened] == ["loss-spike", "loss-divergence"]
        assert len(job.of("incident.exhausted")) == len(opened)
        assert len(job.of("world.formed")) == 1


def test_a_checkpoint_that_is_gone_is_not_gone_back_to(tmp_path: Path) -> None:
    """The script keeps three checkpoints, all from after the spike or too near to it: passed, with the reason."""
    with ftrun(tmp_path) as job:
        script = changed(block("python"), ("300, 10, 20", "250, 10, 3"))
        policy = "version: 1\njob: {abilities: [rollback, skip]}\nchain:\n- rollback_and_skip: {before: 40}\n- stop\n"
        run = start(job, script=script, policy=policy)
        assert run.end() == 0
        passed = next(event for event in job.of("policy.considered") if event.data.policy == "rollback_and_skip")
        assert passed.data.verdict == "pass"
        assert re.match(r"no checkpoint at or before step 109 is kept, the oldest is of step \d+", passed.data.reason)
        assert len(job.of("world.formed")) == 1


def test_a_loss_that_ends_the_script_is_told_before_its_end(tmp_path: Path) -> None:
    """Not a number, and the script ends at once: the finding stands before that, and one rollback answers both."""
    with ftrun(tmp_path) as job:
        raises = "    if loss.isnan():\n        os._exit(3)\n    if step % EVERY"
        script = changed(block("python"), ("wanted * 1000", "wanted * float('nan')"), ("    if step % EVERY", raises))
        run = start(job, script=script, policy=block("yaml"))
        seen = job.wait("fault.observed")
        assert (seen.data.kind, seen.data.step) == ("loss-nan", 149)
        assert "loss-nan: nan at step 150" in seen.data.message
        assert run.end() == 0
        ends = [event.seq for event in job.of("worker.failed") + job.of("workers.stopped") if event.data.round == 1]
        assert min(ends) > seen.seq
        (back,) = job.of("job.rolled_back")
        assert back.data.step == 120
        assert last_loss(run) < 0.05
        assert len(job.of("incident.opened")) == 1


def test_a_norm_is_told_where_no_step_can_be_stopped(tmp_path: Path) -> None:
    """The script reports norms and registers nothing: the log says why `recompute_step` does nothing."""
    with ftrun(tmp_path) as job:
        job.always(0, "report(step, grad_norm=9.0 if step == 3 else 1.0)")
        job.drop("policy.yaml", "version: 1\nchain:\n- recompute_step\n- process_restart\n- stop\n")
        run = job.start("--policy", "policy.yaml")
        seen = job.wait("fault.observed").data
        assert (seen.source, seen.kind, seen.values["at"], seen.values["limit"]) == ("detector", "norm", 3, 3)
        passed = job.wait("policy.considered", policy="recompute_step").data
        assert passed.verdict == "pass" and "needs `retry`" in passed.reason
        assert "needs `retry`" in job.ftctl("explain", "--job", job.job).stdout
        job.finish()
        assert run.end() == 0
        assert len(job.of("world.formed")) == 1


def test_a_loss_that_stays_nan_is_told_by_default(tmp_path: Path) -> None:
    """No policy file: one alert with both remedies, in the log, on the console, in the status and at the job's end."""
    with ftrun(tmp_path) as job:
        job.always(0, "report(step, loss=float('nan'))")
        run = job.start()
        alert = job.wait("alert.raised").data
        status = json.loads(job.ftctl("status", "--job", job.job, "--format", "json").stdout)
        assert f"since step {status['nan_since']}," in alert.text
        assert "rollback_and_skip" in job.ftctl("status", "--job", job.job).stdout
        job.finish()
        assert run.end() == 0
        assert "was NaN or infinite from step" in job.wait("job.finished").data.reason
        assert "rollback_and_skip" in alert.text and "recompute_step" in alert.text
        assert alert.text in run.stderr()
        assert len(job.of("alert.raised")) == 1
