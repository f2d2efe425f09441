"""Verdicts of ``rollback_and_skip``: how far back, and what is left out."""

from policy_cases import ago, ask, incident, running

from ftcore.commands import CommitCheckpoint
from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.states.model import ActionState
from ftcore.states.revisions import BY_TOKENS

ROLLBACK = ("rollback", "skip")


def spike(step=450, kind="loss-spike", as_="warning", checkpoints=(100, 200, 300, 400), **more):
    job = running(abilities=ROLLBACK).state
    job.training.checkpoints = list(checkpoints)
    return job, incident(job, "numeric", kind=as_, observed=kind, step=step, **more)


def test_palm_goes_back_a_hundred_steps_and_skips_batches():
    """The newest checkpoint at least so far back."""
    job, about = spike()
    verdict = ask("rollback_and_skip", about, job)
    assert isinstance(verdict, Take)
    terms = verdict.terms
    assert (verdict.plan, terms.rollback_to, terms.skip, terms.skip_unit) == (PlanKind.RESTART, 300, 200, "batches")
    assert verdict.reason == "goes back from step 450 to 300 and skips 200 batches; 1 of 5 in 1d"


def test_falcon_goes_back_to_the_latest_checkpoint_and_skips_tokens():
    """A billion of them."""
    job, about = spike()
    verdict = ask("rollback_and_skip", about, job, back="latest", skip=10**9, skip_unit="tokens")
    assert isinstance(verdict, Take)
    assert (verdict.terms.rollback_to, verdict.terms.skip, verdict.terms.skip_unit) == (400, 10**9, "tokens")


def test_the_batches_of_the_spike_itself_are_always_left_out():
    """Even where the checkpoint is further back than the setting reaches."""
    job, about = spike(checkpoints=(100,))
    verdict = ask("rollback_and_skip", about, job)
    assert isinstance(verdict, Take)
    assert verdict.terms.skip == 351


def test_a_recurring_spike_causes_a_wider_rollback():
    """Twice as far, and twice as much data; a rollback of long ago makes nothing wider."""
    job, about = spike()
    job.history.attempts["rollback_and_skip"] = [ago(job, 600)]
    verdict = ask("rollback_and_skip", about, job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.rollback_to, verdict.terms.skip) == (200, 400)
    assert "2 times as wide as the first" in verdict.reason
    job.history.attempts["rollback_and_skip"] = [ago(job, 7200)]
    verdict = ask("rollback_and_skip", about, job)
    assert isinstance(verdict, Take)
    assert verdict.terms.rollback_to == 300


def test_without_a_checkpoint_from_before_it_there_is_no_way_back():
    """The reason says what is kept and what would help."""
    job, about = spike(checkpoints=(420, 440))
    verdict = ask("rollback_and_skip", about, job)
    assert verdict == Pass(
        reason="no checkpoint at or before step 350 is kept, the oldest is of step 420: keep more "
        "checkpoints, or reduce `before`"
    )
    job, about = spike(checkpoints=())
    assert ask("rollback_and_skip", about, job) == Pass(reason="no checkpoint is known to be kept")


def test_a_checkpoint_that_is_about_to_be_removed_is_not_gone_back_to():
    """The manifest of a newer one is being written; retention removes the oldest then, if there are as many."""
    job, about = spike(checkpoints=(300, 400, 440))
    commit = CommitCheckpoint(round=1, step=460, files=("shard",))
    job.orders.open["commit"] = ActionState(effect="commit", command=commit, waiting={"node0": "1"}, ordered=0)
    verdict = ask("rollback_and_skip", about, job)
    assert isinstance(verdict, Pass) and "the oldest is of step 400" in verdict.reason
    job.training.checkpoints = [300, 400]
    verdict = ask("rollback_and_skip", about, job)
    assert isinstance(verdict, Take) and verdict.terms.rollback_to == 300


def test_a_script_that_cannot_skip_is_rolled_back_only_without():
    """What is not declared is not ordered."""
    job, about = spike()
    job.abilities.declared = {"script": ("rollback",)}
    assert isinstance(ask("rollback_and_skip", about, job), Pass)
    verdict = ask("rollback_and_skip", about, job, skip=0)
    assert isinstance(verdict, Take)
    assert verdict.terms.skip == 0


def test_registered_data_is_skipped_by_batches_unless_the_tokens_of_a_step_are_known():
    """A script that declares `skip` itself knows them. Masters before that revision asked for batches in any case."""
    job, about = spike()
    job.abilities.declared = {"workers": ("rollback", "skip")}
    assert isinstance(ask("rollback_and_skip", about, job), Take)
    verdict = ask("rollback_and_skip", about, job, skip=10**9, skip_unit="tokens")
    by_batches = "registered data is skipped by batches; expected `skip_unit: batches`"
    assert verdict == Pass(reason=f"{by_batches}; or pass the tokens of a step to `steps(tokens=...)`")
    job.abilities.declared["workers"] = ("rollback", "skip", "tokens")
    verdict = ask("rollback_and_skip", about, job, skip=10**9, skip_unit="tokens")
    assert isinstance(verdict, Take)
    assert (verdict.terms.skip, verdict.terms.skip_unit) == (10**9, "tokens")
    assert job.master is not None
    job.master.decides = BY_TOKENS - 1
    assert ask("rollback_and_skip", about, job, skip=10**9, skip_unit="tokens") == Pass(reason=by_batches)
    job.abilities.declared["file"] = ("skip",)
    assert isinstance(ask("rollback_and_skip", about, job, skip=10**9, skip_unit="tokens"), Take)


def test_processes_that_can_stay_go_back_as_they_are():
    """Not those of a script that reads at its start what to skip, and not if a worker is missing."""
    job, about = spike()
    job.abilities.declared = {"workers": (*ROLLBACK, "retry")}
    verdict = ask("rollback_and_skip", about, job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.survivors, verdict.terms.rollback_to, verdict.terms.skip) == ("park", 300, 200)
    assert "goes back from step 450 to 300 in the same processes and skips 200 batches" in verdict.reason
    job.abilities.declared["file"] = ("skip",)
    assert ask("rollback_and_skip", about, job).terms.survivors == "stop"
    assert ask("rollback_and_skip", about, job, skip=0).terms.survivors == "park"
    driver = running(abilities=("rollback", "retry"))
    driver.fail("node2", exitcode=-9)
    driver.state.training.checkpoints = [300]
    about = incident(driver.state, "numeric", observed="loss-spike", step=450)
    assert ask("rollback_and_skip", about, driver.state, skip=0).terms.survivors == "stop"


def test_an_unknown_step_or_another_kind_is_not_rolled_back():
    """Without a step that counts from the start there is no checkpoint before it."""
    job, about = spike(step=None)
    assert isinstance(ask("rollback_and_skip", about, job), Pass)
    job, about = spike(kind="norm")
    assert isinstance(ask("rollback_and_skip", about, job), Pass)


def test_rollbacks_have_a_budget():
    """A training that diverges all the time needs a person."""
    job, about = spike()
    job.history.attempts["rollback_and_skip"] = [ago(job, 7200)] * 5
    verdict = ask("rollback_and_skip", about, job)
    assert verdict == Pass(reason="budget spent: 5 of 5 rollbacks in the last 1d")
