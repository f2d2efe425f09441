"""Verdicts of ``lower_learning_rate``, and what follows from them: the event, the state, the orders."""

from policy_cases import ago, ask, incident, running

from ftcore.engine.orders import slice_of
from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import parse
from ftcore.replay import verify
from ftcore.replay.status import status_of
from ftcore.replay.status_rows import rate_text
from ftcore.runtime.agent.workers.environment import LR_FACTOR, own_env
from ftcore.testing.driver import JobDriver

NAME = "lower_learning_rate"


def spike(step=450, kind="loss-spike", abilities=("rollback",)):
    job = running(abilities=abilities).state
    job.training.checkpoints = [100, 200, 300, 400]
    return job, incident(job, "numeric", kind="warning", observed=kind, step=step)


def test_it_goes_back_and_lowers_the_rate():
    """In the same processes, if they can go back as they are."""
    job, about = spike()
    verdict = ask(NAME, about, job)
    assert isinstance(verdict, Take)
    terms = verdict.terms
    assert (verdict.plan, terms.rollback_to, terms.lr_factor, terms.skip) == (PlanKind.RESTART, 300, 0.5, 0)
    assert terms.survivors == "stop"
    assert verdict.reason == "goes back from step 450 to 300 with 0.5 of the script's learning rate; 1 of 3 in 1d"
    verdict = ask(NAME, about, job, back="latest", factor=0.3)
    assert isinstance(verdict, Take)
    assert (verdict.terms.rollback_to, verdict.terms.lr_factor) == (400, 0.3)
    job, about = spike(abilities=("rollback", "retry"))
    verdict = ask(NAME, about, job)
    assert isinstance(verdict, Take)
    assert verdict.terms.survivors == "park"


def test_the_rate_has_a_lower_bound():
    """All lowerings count together."""
    job, about = spike()
    job.policy.chain = [*job.policy.chain, default_entry(NAME)]
    job.training.lr_factor, job.training.lr_policy = 0.2, NAME
    assert isinstance(ask(NAME, about, job), Take)
    job.training.lr_factor = 0.125
    assert ask(NAME, about, job) == Pass(
        reason="the learning rate is 0.125 of the script's own; `least` is 0.1",
    )


def test_what_it_leaves_to_others():
    """Other observations, an unknown step, no checkpoint from before, a spent budget."""
    job, about = spike(kind="norm")
    assert isinstance(ask(NAME, about, job), Pass)
    job, about = spike(step=None)
    assert isinstance(ask(NAME, about, job), Pass)
    job, about = spike(step=150)
    assert "no checkpoint at or before step 50 is kept" in ask(NAME, about, job).reason
    job, about = spike()
    job.history.attempts[NAME] = [ago(job, 60)] * 3
    assert ask(NAME, about, job) == Pass(reason="budget spent: 3 of 3 lowerings in the last 1d")


def test_all_later_rounds_have_the_lower_rate():
    """Below a rollback that has not helped; also after a restart for another reason, and in the next run."""
    chain = "version: 1\nchain:\n- rollback_and_skip: {before: 5, max_rollbacks: 1, skip: 0}\n"
    chain += "- lower_learning_rate: {before: 5}\n- process_restart\n- stop\n"
    driver = JobDriver(nodes=2, policy=parse(chain, "p"), abilities=("rollback",))
    driver.submit()
    for name in ("n0", "n1"):
        driver.join(name)

    def settle():
        for _ in range(50):
            driver.settle()
            if driver.state.phase == "running" and driver.state.incident is None:
                return
            assert driver.wait(), driver.state

    settle()
    for _ in range(2):
        driver.make_steps(10)
        driver.commit()
        driver.make_steps(10)
        driver.observe("n1", "loss-spike")
        settle()
    taken = [event.data.policy for event in driver.events if event.type == "incident.resolved"]
    assert taken == ["rollback_and_skip", NAME]
    (lowered,) = [event.data for event in driver.events if event.type == "rate.lowered"]
    assert (lowered.before, lowered.factor) == (1.0, 0.5)
    driver.fail("n0", exitcode=-9)
    settle()
    part = slice_of(driver.state, "n0")
    assert part.lr_factor == driver.state.training.lr_factor == 0.5
    assert own_env(part, 4, "", "")[LR_FACTOR] == "0.5"
    assert rate_text(status_of(driver.state, "job")) == "0.5 of the script's: a policy has lowered it"
    assert verify(driver.events).mismatches == ()
    driver.state.policy.chain = [entry for entry in driver.state.policy.chain if entry.policy != NAME]
    assert slice_of(driver.state, "n0").lr_factor == 1.0, "whoever takes the entry out wants the script's own rate"
