"""Whole incidents, carried out by the production engine: for each policy one that it ends best, one that it must leave
to others, and one in which its plan fails and the chain goes on past it.

A story is what a reader of the log sees of it: who took the incident, what came of it, how it ended. Every log is
verified. Taking a policy out of its chain changes the story of the incident that it ends best.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest
from policy_cases import DEFAULT_ORDER, chain
from reproduced import assert_reproduced

from ftcore.events import decode, encode
from ftcore.events.incident import IncidentContinued, IncidentEscalated, IncidentExhausted, IncidentResolved
from ftcore.events.job import JobFinished, JobSpec
from ftcore.events.policy import AbilityDeclared, PolicyConsidered
from ftcore.replay import verify
from ftcore.states.model import TakenPlan, digest
from ftcore.testing.driver import JobDriver

EVERYTHING = ("replace", "check", "pause", "retry", "park", "save", "rollback", "skip", "replicas")


@attrs.frozen(kw_only=True)
class Case:
    """A job, and what happens to it.

    Args:
        policy: the policy that it is about.
        happens: what happens to the job once it runs.
        story: how its incidents go.
        nodes, least, most: how many nodes it has, needs at least, and wants.
        can: what platform and script declared.
        above: a policy to put on top of the default chain.
        options: of entries, by policy.
    """

    policy: str
    happens: Callable[[JobDriver], None]
    story: tuple[str, ...]
    nodes: int = 3
    least: int = 3
    most: int = 3
    can: Sequence[str] = EVERYTHING
    above: str = ""
    options: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def run(self, *, without: str = "") -> JobDriver:
        """Let it happen, and let time pass until the job runs again or has ended."""
        names = [name for name in (self.above, *DEFAULT_ORDER) if name and name != without]
        spec = JobSpec(argv=("train.py",), nodes_min=self.least, nodes_max=self.most)
        driver = JobDriver(spec=spec, policy=chain(*names, **self.options), abilities=self.can)
        driver.submit()
        for number in range(self.nodes):
            driver.join(f"node{number}")
        _on(driver)
        driver.make_steps(300)
        self.happens(driver)
        _on(driver)
        return driver


def _on(driver: JobDriver) -> None:
    for _ in range(50):
        driver.settle()
        if driver.ended or (driver.state.incident is None and driver.state.phase in ("running", "paused")):
            return
        assert driver.wait(), driver.state


def story_of(driver: JobDriver) -> tuple[str, ...]:
    """What became of its incidents."""
    told = []
    for event in driver.events:
        match event.data:
            case PolicyConsidered(verdict="take", policy=policy):
                told.append(policy)
            case IncidentEscalated(policy=policy):
                told.append(f"past {policy}")
            case IncidentContinued(outcome=outcome):
                told.append(outcome)
            case IncidentResolved(outcome=outcome):
                told.append(f"= {outcome}")
            case IncidentExhausted():
                told.append("dropped")
            case JobFinished(outcome=outcome):
                told.append(outcome)
    return tuple(told)


def passes_of(driver: JobDriver, policy: str) -> list[str]:
    """The reasons for which a policy passed."""
    considered = (event.data for event in driver.events if isinstance(event.data, PolicyConsidered))
    return [asked.reason for asked in considered if asked.policy == policy and asked.verdict == "pass"]


def plan_in_force(driver: JobDriver) -> TakenPlan | None:
    """The plan of the open incident; None without either."""
    return driver.state.incident.plan if driver.state.incident is not None else None


# --- what happens ----------------------------------------------------------------------------------------------------


def seen(kind: str, **more: Any) -> Callable[[JobDriver], None]:
    return lambda driver: driver.observe("node1", kind, **more)


def registered(then: Callable[[JobDriver], None]) -> Callable[[JobDriver], None]:
    """The script has registered its data."""

    def happens(driver: JobDriver) -> None:
        driver.own(AbilityDeclared(source="workers", abilities=("retry", "skip")))
        then(driver)

    return happens


def refused(*orders: str, then: Callable[[JobDriver], None]) -> Callable[[JobDriver], None]:
    def happens(driver: JobDriver) -> None:
        driver.refuses["*"] = orders
        then(driver)

    return happens


def full(then: Callable[[JobDriver], None]) -> Callable[[JobDriver], None]:
    def happens(driver: JobDriver) -> None:
        driver.capacity = 0
        then(driver)

    return happens


def silent(kind: str) -> Callable[[JobDriver], None]:
    """The order is obeyed, and no step follows."""

    def happens(driver: JobDriver) -> None:
        driver.observe("node1", kind)
        driver.settle(step=False)
        while (plan := plan_in_force(driver)) is not None and plan.policy == "step_retry":
            assert driver.wait()

    return happens


def killed(driver: JobDriver) -> None:
    driver.fail("node1", exitcode=-9)


def lost(driver: JobDriver) -> None:
    driver.lose("node1")


def asked(command: str, node: str = "") -> Callable[[JobDriver], None]:
    return lambda driver: driver.command(command, node)


def one_after_the_other(driver: JobDriver) -> None:
    for number in range(1, 5):
        driver.lose(f"node{number}")
        _on(driver)


def killed_then_spare(driver: JobDriver) -> None:
    driver.fail("node1", exitcode=-9)
    _on(driver)
    driver.join("node9")


def without_a_step(policy: str, happens: Callable[[JobDriver], None]) -> Callable[[JobDriver], None]:
    """The plan's new round starts, and no step follows."""

    def then(driver: JobDriver) -> None:
        happens(driver)
        driver.settle(step=False)
        while (plan := plan_in_force(driver)) is not None and plan.policy == policy:
            assert driver.wait()
            driver.settle(step=False)

    return then


def killed_before_the_step(happens: Callable[[JobDriver], None]) -> Callable[[JobDriver], None]:
    """The plan's new round starts, and a rank dies before its first step."""

    def then(driver: JobDriver) -> None:
        happens(driver)
        driver.settle(step=False)
        killed(driver)

    return then


def spike(driver: JobDriver) -> None:
    driver.commit(100)
    driver.observe("node1", "loss-spike")


def spare(driver: JobDriver) -> None:
    driver.join("node9")


def spare_that_goes(driver: JobDriver) -> None:
    driver.join("node9")
    driver.lose("node9")


def killed_and_no_step(driver: JobDriver) -> None:
    driver.fail("node1", exitcode=-9)
    driver.settle(step=False)
    while not driver.ended:
        assert driver.wait()
        driver.settle(step=False)


WORKS = (
    Case(policy="step_retry", happens=seen("uce"), story=("step_retry", "= stepped")),
    Case(policy="hot_swap", happens=lost, story=("hot_swap", "= stepped")),
    Case(
        policy="dying_checkpoint",
        happens=killed,
        can=("save", "replicas"),
        story=("dying_checkpoint", "saved", "process_restart", "= stepped"),
    ),
    Case(policy="pod_replacement", happens=lost, can=("replace",), story=("pod_replacement", "= stepped")),
    Case(policy="process_restart", happens=killed, can=(), story=("process_restart", "= stepped")),
    Case(
        policy="shrink",
        happens=asked("drain", "node1"),
        can=(),
        least=2,
        story=("shrink", "= stepped"),
    ),
    Case(policy="grow", happens=spare, nodes=2, least=2, can=(), story=("grow", "= stepped")),
    Case(policy="evict_straggler", happens=seen("straggler"), can=("replace",), story=("evict_straggler", "= stepped")),
    Case(policy="step_pause", happens=asked("pause"), story=("step_pause", "= paused")),
    Case(
        policy="recompute_step",
        above="recompute_step",
        happens=seen("norm"),
        story=("recompute_step", "= stepped"),
    ),
    Case(
        policy="skip_batch",
        above="skip_batch",
        can=("retry",),
        happens=registered(seen("norm")),
        story=("skip_batch", "= stepped"),
    ),
    Case(
        policy="rollback_and_skip",
        above="rollback_and_skip",
        happens=spike,
        story=("rollback_and_skip", "= stepped"),
    ),
    Case(
        policy="lower_learning_rate",
        above="lower_learning_rate",
        happens=spike,
        story=("lower_learning_rate", "= stepped"),
    ),
    Case(
        policy="alert",
        above="alert",
        options={"alert": {"to": ("mailto:x",)}},
        happens=killed,
        can=(),
        story=("alert", "told", "process_restart", "= stepped"),
    ),
    Case(policy="stop", happens=lambda driver: driver.stop(), story=("stop", "= ended", "stopped")),
)

PASSES = (
    Case(policy="step_retry", happens=killed, story=("hot_swap", "= stepped")),
    Case(policy="hot_swap", happens=seen("uce"), can=("park",), story=("process_restart", "= stepped")),
    Case(policy="dying_checkpoint", happens=killed, can=("save",), story=("process_restart", "= stepped")),
    Case(policy="pod_replacement", happens=killed, can=("replace",), story=("process_restart", "= stepped")),
    Case(
        policy="pod_replacement",
        happens=one_after_the_other,
        nodes=10,
        least=5,
        most=10,
        can=("replace",),
        story=(*("pod_replacement", "= stepped") * 3, "process_restart", "past process_restart", "shrink", "= stepped"),
    ),
    Case(policy="process_restart", happens=seen("uce"), least=2, can=(), story=("shrink", "= stepped")),
    Case(
        policy="shrink",
        happens=lost,
        can=(),
        story=("process_restart", "past process_restart", "stop", "= ended", "failed"),
    ),
    Case(
        policy="grow",
        happens=killed_then_spare,
        nodes=2,
        least=2,
        can=(),
        story=("process_restart", "= stepped", "dropped"),
    ),
    Case(policy="evict_straggler", happens=seen("straggler"), can=(), story=("dropped",)),
    Case(policy="recompute_step", above="recompute_step", happens=seen("loss-spike"), story=("dropped",)),
    Case(policy="skip_batch", above="skip_batch", happens=seen("norm"), story=("process_restart", "= stepped")),
    Case(policy="rollback_and_skip", above="rollback_and_skip", happens=seen("loss-spike"), story=("dropped",)),
    Case(policy="lower_learning_rate", above="lower_learning_rate", happens=seen("loss-spike"), story=("dropped",)),
    Case(policy="alert", above="alert", happens=killed, can=(), story=("process_restart", "= stepped")),
)

FAILS = (
    Case(
        policy="step_retry",
        happens=killed_before_the_step(seen("uce")),
        can=("retry", "park"),
        story=("step_retry", "hot_swap", "= stepped"),
    ),
    Case(
        policy="step_retry",
        happens=silent("collective"),
        can=("retry",),
        story=("step_retry", "past step_retry", "process_restart", "= stepped"),
    ),
    Case(
        policy="hot_swap",
        happens=without_a_step("hot_swap", killed),
        can=("park",),
        story=("hot_swap", "past hot_swap", "process_restart", "= stepped"),
    ),
    Case(
        policy="dying_checkpoint",
        happens=refused("save_checkpoint", then=killed),
        can=("save", "replicas"),
        story=("dying_checkpoint", "past dying_checkpoint", "process_restart", "= stepped"),
    ),
    Case(
        policy="pod_replacement",
        happens=full(lost),
        can=("replace",),
        least=2,
        story=(
            "pod_replacement",
            "past pod_replacement",
            "process_restart",
            "past process_restart",
            "shrink",
            "= stepped",
        ),
    ),
    Case(
        policy="process_restart",
        happens=killed_and_no_step,
        can=(),
        story=("process_restart", "past process_restart", "stop", "= ended", "failed"),
    ),
    Case(
        policy="shrink",
        happens=without_a_step("shrink", asked("drain", "node1")),
        can=(),
        least=2,
        story=("shrink", "past shrink", "process_restart", "= stepped"),
    ),
    Case(
        policy="evict_straggler",
        happens=without_a_step("evict_straggler", seen("straggler")),
        can=("replace",),
        story=("evict_straggler", "past evict_straggler", "process_restart", "= stepped"),
    ),
    Case(
        policy="rollback_and_skip",
        above="rollback_and_skip",
        happens=without_a_step("rollback_and_skip", spike),
        story=("rollback_and_skip", "past rollback_and_skip", "process_restart", "= stepped"),
    ),
    Case(
        policy="lower_learning_rate",
        above="lower_learning_rate",
        happens=without_a_step("lower_learning_rate", spike),
        story=("lower_learning_rate", "past lower_learning_rate", "process_restart", "= stepped"),
    ),
    Case(
        policy="grow",
        happens=spare_that_goes,
        nodes=2,
        least=2,
        can=(),
        story=("grow", "past grow", "process_restart", "= stepped"),
    ),
    Case(
        policy="step_pause",
        happens=refused("pause_workers", then=asked("pause")),
        story=("step_pause", "past step_pause", "dropped"),
    ),
    Case(
        policy="recompute_step",
        above="recompute_step",
        happens=without_a_step("recompute_step", seen("norm")),
        can=("retry",),
        story=("recompute_step", "past recompute_step", "process_restart", "= stepped"),
    ),
    Case(
        policy="skip_batch",
        above="skip_batch",
        happens=registered(without_a_step("skip_batch", seen("norm"))),
        can=("retry",),
        story=("skip_batch", "past skip_batch", "process_restart", "= stepped"),
    ),
)


def _ids(case: Case) -> str:
    return f"{case.policy}-{getattr(case.happens, '__name__', 'x').strip('<>')}"


@pytest.mark.parametrize("case", [*WORKS, *FAILS], ids=_ids)
def test_the_incident_proceeds_as_expected(case: Case):
    """The incident ends as the case says; deciding again gives the same log."""
    driver = case.run()
    assert story_of(driver) == case.story
    report = verify(decode(encode(event)) for event in driver.events)
    assert report.ok, "\n".join(map(str, report.mismatches))
    assert report.digest == digest(driver.state)
    assert_reproduced(driver.events)


@pytest.mark.parametrize("case", PASSES, ids=_ids)
def test_what_is_not_for_a_policy_is_left_to_others(case: Case):
    """It passes, with a reason, and another one takes the incident, or it is dropped."""
    driver = case.run()
    assert story_of(driver) == case.story
    assert passes_of(driver, case.policy)


@pytest.mark.parametrize("case", [case for case in WORKS if case.policy != "stop"], ids=lambda case: case.policy)
def test_taking_a_policy_out_of_the_chain_changes_the_outcome(case: Case):
    """Nobody else ends the incident in the same way; a chain without `stop` is refused when it is read."""
    assert story_of(case.run(without=case.policy)) != case.story


def test_every_policy_has_its_scenarios():
    """A new one brings its own; what only tells, or ends the job, has no plan that could fail."""
    every = {*DEFAULT_ORDER, "recompute_step", "skip_batch", "rollback_and_skip", "lower_learning_rate", "alert"}
    assert {case.policy for case in WORKS} == every
    assert {case.policy for case in PASSES} >= every - {"stop", "step_pause"}
    assert {case.policy for case in FAILS} >= every - {"alert", "stop"}
