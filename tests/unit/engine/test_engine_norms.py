"""Abnormal norms: a fault that waits for a plan, values in the state, and what the next round's ranks are given."""

import msgspec
import pytest

from ftcore.engine.orders import slice_of
from ftcore.events.incident import IncidentOpened
from ftcore.events.policy import AbilityDeclared, PolicyConsidered, PolicyLoaded
from ftcore.events.worker import FaultObserved
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain
from ftcore.replay import verify
from ftcore.states.norms import NORMS_MAX
from ftcore.states.revisions import STOPPED_BY_RANK
from ftcore.testing.driver import JobDriver


def job(*, decides: int | None = None, **options: object) -> JobDriver:
    """A job that computes abnormal steps again."""
    entry = default_entry("recompute_step")
    entry.options.update(options)
    policy: PolicyLoaded = msgspec.structs.replace(default_chain(), chain=(entry, *default_chain().chain))
    more = {} if decides is None else {"decides": decides}
    driver = JobDriver(policy=policy, abilities=("retry",), **more)
    driver.start()
    return driver


def abnormal(driver: JobDriver, step: int, norm: float = 9.0, **more: float) -> None:
    """Both nodes report a step."""
    for node in ("node0", "node1"):
        driver.observe(node, "norm", values={"norm": norm, "at": step, "limit": 3.0, **more})


def taken(driver: JobDriver) -> list[str]:
    """The policies that took an incident."""
    considered = (event.data for event in driver.events if isinstance(event.data, PolicyConsidered))
    return [data.policy for data in considered if data.verdict == "take"]


def norms(driver: JobDriver) -> dict[int, tuple[float | None, ...]]:
    """The abnormal steps with their values."""
    return {step: norm.values for step, norm in driver.state.training.norms.items()}


def test_the_next_round_accepts_the_step():
    """From its plan on; a plan that is replaced before its round begins accepts nothing."""
    driver = job()
    abnormal(driver, 2)
    assert driver.state.training.tolerated == []
    driver.settle()
    assert driver.state.training.tolerated == [2]
    part = slice_of(driver.state, "node1")
    assert (part.norm_threshold, part.tolerated) == (3.0, (2,))
    abnormal(driver, 5)
    driver.lose("node0")
    assert driver.state.training.tolerated == [2]
    assert verify(driver.events).ok


@pytest.mark.parametrize(("decides", "kinds"), [(STOPPED_BY_RANK, ["warning"]), (STOPPED_BY_RANK - 1, ["fault"])])
def test_a_norm_that_a_detector_reports_is_that_of_a_complete_step(decides: int, kinds: list[str]):
    """No rank waits for a plan, and the state before the step is gone: the training goes on."""
    driver = job(decides=decides)
    node = driver.state.membership.nodes["node0"]
    driver.say(
        "node0",
        FaultObserved(
            node="node0",
            incarnation=node.incarnation,
            round=node.round,
            source="detector",
            kind="norm",
            rank=0,
            message="norm: 9",
            step=driver.step,
            absolute=True,
            values={"norm": 9.0},
        ),
    )
    driver.settle()
    opened = [event.data.kind for event in driver.events if isinstance(event.data, IncidentOpened)]
    assert opened == kinds
    assert bool(taken(driver)) == (decides < STOPPED_BY_RANK)
    assert (driver.state.training.norms == {}) == (decides >= STOPPED_BY_RANK)
    assert verify(driver.events).ok


@pytest.mark.parametrize("followed", [False, True])
def test_a_batch_is_left_out_until_the_skips_are_spent(followed: bool):
    """Then ranks compare no norms, unless a later policy takes them."""
    entry = default_entry("skip_batch")
    entry.options.update(max_skipped=2)
    later = default_entry("lower_learning_rate")
    later.options.update(on=("norm",))
    policy = default_chain()
    chain = (entry, *((later,) if followed else ()), *policy.chain)
    driver = JobDriver(policy=msgspec.structs.replace(policy, chain=chain), abilities=("retry",))
    driver.start()
    for step, threshold in ((2, 3.0), (5, 3.0 if followed else None)):
        driver.own(AbilityDeclared(source="workers", abilities=("retry", "skip")))
        abnormal(driver, step)
        driver.settle()
        assert slice_of(driver.state, "node1").norm_threshold == threshold
    assert [(skip.step, skip.amount, skip.unit) for skip in driver.state.training.skips] == [
        (1, 1, "batches"),
        (4, 1, "batches"),
    ]
    assert taken(driver) == ["skip_batch"] * 2
    assert verify(driver.events).ok


def test_an_accepted_step_opens_nothing_and_costs_nothing():
    """It is recorded as the second value, whichever node is first; the attempts stay the same."""
    driver = job()
    abnormal(driver, 2, 9.0)
    driver.settle(step=False)
    abnormal(driver, 2, 9.5, again=1.0)
    driver.settle()
    abnormal(driver, 2, 9.7, again=1.0)
    assert norms(driver) == {2: (9.0, 9.5)}
    assert (taken(driver), driver.state.incidents, driver.state.incident) == (["recompute_step"], 1, None)
    assert (driver.state.history.streak, driver.state.evidence.repeat.count) == (0, 1)


def test_without_tolerance_the_second_value_is_recorded_too():
    """The step is abnormal in a later round, and left to the next policy."""
    driver = job(tolerate=False)
    abnormal(driver, 2, 9.0)
    driver.settle(step=False)
    abnormal(driver, 2, 9.5)
    driver.settle()
    assert norms(driver) == {2: (9.0, 9.5)}
    assert driver.state.training.tolerated == []
    assert taken(driver) == ["recompute_step", "stop"], "a restart would compute the same step a third time"


def test_spent_attempts_switch_the_threshold_off():
    """A rank would stop a step for which no plan follows."""
    driver = job(max_recomputed=2)
    for step in (3, 6):
        assert slice_of(driver.state, "node0").norm_threshold == 3.0
        abnormal(driver, step)
        driver.settle()
    assert slice_of(driver.state, "node0").norm_threshold is None
    driver.state.time += 3_601 * 10**9
    assert slice_of(driver.state, "node0").norm_threshold == 3.0


def test_ranks_of_other_chains_compare_nothing():
    """And a norm that a detector reports there is a warning, which no default policy takes."""
    driver = JobDriver()
    driver.start()
    assert (slice_of(driver.state, "node0").norm_threshold, slice_of(driver.state, "node0").tolerated) == (None, ())
    abnormal(driver, 2)
    driver.settle()
    assert (taken(driver), norms(driver), driver.state.incident) == ([], {}, None)


def test_the_newest_steps_are_kept():
    """A job that runs for years keeps no more."""
    driver = job()
    for step in range(1, NORMS_MAX + 10):
        abnormal(driver, step, again=1.0)
    assert len(norms(driver)) == NORMS_MAX
    assert max(norms(driver)) == NORMS_MAX + 9


def test_an_abnormal_step_during_a_recovery_waits_for_no_deadline():
    """The first step of a retried round is abnormal: the chain is asked at once."""
    policy = msgspec.structs.replace(
        default_chain(),
        chain=(default_entry("step_retry"), default_entry("recompute_step"), *default_chain().chain[3:]),
    )
    driver = JobDriver(policy=policy, abilities=("retry",))
    driver.start()
    driver.observe("node0", "collective")
    driver.settle(step=False)
    abnormal(driver, 2)
    driver.settle()
    assert taken(driver) == ["step_retry", "recompute_step"]
    assert driver.state.incident is None


def test_an_earlier_master_needed_more():
    """Its passes verify: a swap needed replicas, and a step that is computed again a snapshot."""
    driver = job(decides=16)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    considered = [event.data for event in driver.events if isinstance(event.data, PolicyConsidered)]
    lacks = {data.policy: data.lacks for data in considered}
    assert lacks["recompute_step"] == ("snapshot",)
    assert lacks["hot_swap"] == ("park", "replicas")
    assert "restore its state from before a step declares it" in considered[0].reason
    assert verify(driver.events).ok


def test_a_retry_is_charged_to_no_restart():
    """Neither the budget of restarts nor their back-off counts it; a growth does not wait after it."""
    driver = JobDriver(abilities=("retry",))
    driver.start()
    for kind in ("uce", "collective"):
        driver.observe("node0", kind)
        driver.settle()
    assert taken(driver) == ["step_retry"] * 2
    assert "process_restart" not in driver.state.history.attempts
    driver.observe("node0", "uce")
    driver.settle(step=False)
    while driver.state.incident is not None and driver.state.incident.tried == []:
        assert driver.wait()
    restart = next(e.data for e in reversed(driver.events) if isinstance(e.data, PolicyConsidered))
    assert (restart.policy, restart.wait_s, restart.attempt) == ("process_restart", 0.0, 1)
