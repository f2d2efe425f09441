"""The chain: entries that it asks or skips, missing abilities, and the budgets of policies."""

import msgspec
import pytest
from policy_cases import ago, ask, chain, entry, incident, request, running

from ftcore.events.master import MasterElected
from ftcore.events.policy import AbilityDeclared, PolicyConsidered
from ftcore.policies.abilities import DECLARED_BY, lacking
from ftcore.policies.base import Ability, Pass, Take
from ftcore.policies.budget import attempts, charged, cooling_s, faults_of, node_spent, spent
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER, consult
from ftcore.policies.options import described
from ftcore.replay import Explainer, read, verify
from ftcore.states.model import JobState, to_json
from ftcore.testing.driver import JobDriver

THIRTEEN = sorted(BUILT_IN)


def answers(about, job):
    return [(answer.policy, type(answer.verdict).__name__) for answer in consult(job.policy.chain, about, job)]


def test_all_fifteen_policies_are_there():
    """Each under its own name, with what a reader needs to know of it."""
    assert len(BUILT_IN) == 15
    for name, policy in BUILT_IN.items():
        assert policy.name == name
        assert policy.doc.endswith(".")
        assert policy.conditions
        assert policy.kinds
        assert all(option.doc.endswith(".") for option in described(policy.options).values())


def test_the_default_chain_ends_with_stop_and_leaves_out_what_must_be_asked_for():
    """Whoever wants a rollback, a recomputed step or a message says so in a file."""
    assert DEFAULT_ORDER[-1] == "stop"
    asked_for = {"recompute_step", "skip_batch", "rollback_and_skip", "lower_learning_rate", "alert"}
    assert set(BUILT_IN) - set(DEFAULT_ORDER) == asked_for


def test_a_killed_worker_of_a_plain_job_is_restarted():
    """Whoever needs abilities passes before."""
    job = running().state
    assert answers(incident(job, "signal-preemption", ended=True), job) == [
        ("step_retry", "Pass"),
        ("hot_swap", "Pass"),
        ("dying_checkpoint", "Pass"),
        ("pod_replacement", "Pass"),
        ("process_restart", "Take"),
    ]


def test_only_entries_that_handle_a_request_are_asked():
    """The record of a pause is short."""
    job = running(abilities=("pause",)).state
    assert answers(request(job, "pause"), job) == [("step_pause", "Take")]
    job = running().state
    assert [name for name, _ in answers(request(job, "drain", "node1"), job)] == [
        "dying_checkpoint",
        "pod_replacement",
        "shrink",
    ]


@pytest.mark.parametrize("kind", ["warning", "opportunity"])
def test_an_incident_that_no_policy_takes_does_not_end_the_job(kind):
    """Neither `stop` nor a restart is asked about a trouble that the training survives, or about a chance."""
    job = running().state
    asked = answers(incident(job, "hang", kind=kind, detail="nothing"), job)
    assert not {"stop", "process_restart"} & {name for name, _ in asked}
    assert all(verdict == "Pass" for _, verdict in asked)


def test_a_request_whose_plan_stopped_the_workers_and_failed_is_handled_like_a_fault():
    """The restart policy starts the workers again; if that fails, the job ends with the reason."""
    driver = running(3, abilities=("replace",))
    about = request(driver.state, "evict", "node1")
    about.tried.append("pod_replacement")
    about.asked.append("pod_replacement")
    assert "process_restart" not in dict(answers(about, driver.state))
    driver.lose("node2")
    verdict = ask("process_restart", about, driver.state)
    assert isinstance(verdict, Take)
    assert verdict.reason.startswith(
        "restart 1 of 20 in 1h; restarts the workers after the failed plan of pod_replacement"
    )
    assert dict(answers(about, driver.state))["process_restart"] == "Take"
    about.tried.append("process_restart")
    about.asked.append("process_restart")
    last = answers(about, driver.state)[-1]
    assert last == ("stop", "Take")


def test_a_policy_is_asked_once_in_a_revision():
    """Entries that were already asked are skipped; the chain continues below them."""
    job = running().state
    about = incident(job, "signal-preemption", ended=True, asked=["step_retry", "process_restart"])
    names = [name for name, _ in answers(about, job)]
    assert names == ["hot_swap", "dying_checkpoint", "pod_replacement", "shrink", "stop"]


def test_what_a_job_cannot_do_is_passed_over_with_the_way_to_get_it():
    """Every ability that is missing is named, with who can declare it."""
    job = running().state
    about = incident(job, "signal-preemption", ended=True)
    verdict = next(answer.verdict for answer in consult(job.policy.chain, about, job) if answer.policy == "hot_swap")
    assert verdict == Pass(
        reason="needs `park`: a script that can keep its state from one round to the next declares it",
        lacks=("park",),
    )
    assert set(DECLARED_BY) == set(Ability)
    assert lacking((Ability.PARK,), running(abilities=("park",)).state) == ""


def test_an_entry_for_some_classes_is_not_asked_about_others():
    """The entry says so; its policy is not asked."""
    job = running().state
    job.policy.chain = tuple(
        msgspec.structs.replace(e, faults=("hang",)) if e.policy == "process_restart" else e for e in job.policy.chain
    )
    about = incident(job, "signal-preemption", ended=True)
    given = {answer.policy: answer.verdict for answer in consult(job.policy.chain, about, job)}
    assert given["process_restart"] == Pass(reason="limited by `faults` to: hang")


def test_a_policy_of_a_newer_version_is_passed_over():
    """A log may name a policy that this version does not have."""
    job = running().state
    job.policy.chain = (msgspec.structs.replace(job.policy.chain[0], policy="magic"), *job.policy.chain)
    about = incident(job, "signal-preemption", ended=True)
    first = next(iter(consult(job.policy.chain, about, job)))
    assert first.verdict == Pass(reason="unknown policy: this version of ftcore does not have it")


def test_options_that_a_log_did_not_know_have_their_defaults():
    """A chain that an older version recorded is asked as it was."""
    job = running().state
    job.policy.chain = tuple(
        msgspec.structs.replace(
            e, options={"max_restarts": 3, "window": 60, "same_fault": 2, "grace": 5, "deadline": 0}
        )
        if e.policy == "process_restart"
        else e
        for e in job.policy.chain
    )
    *_, last = consult(job.policy.chain, incident(job, "signal-preemption", ended=True), job)
    assert isinstance(last.verdict, Take)
    assert last.verdict.reason == "restart 1 of 3 in 1m"


@pytest.mark.parametrize("name", THIRTEEN)
@pytest.mark.parametrize("cls", ["gpu-hw", "numeric", "unknown", "a-class-of-tomorrow"])
@pytest.mark.parametrize("kind", ["fault", "warning", "request", "opportunity"])
def test_every_policy_answers_everything_and_changes_nothing(name, cls, kind):
    """Also what is not its business, in a job without a world, with a class that this version does not know."""
    every = tuple(map(str, Ability))
    for job in (running(abilities=every).state, JobState()):
        about = incident(job, cls, kind=kind)
        before = to_json(job), repr(about)
        first = ask(name, about, job)
        assert first == ask(name, about, job)
        assert first.reason
        assert before == (to_json(job), repr(about))


def test_the_same_options_as_lists_are_the_same():
    """What came back from a log is a list where it was a tuple."""
    job = running(abilities=("replace",)).state
    about = incident(job, "gpu-hw")
    assert ask("pod_replacement", about, job, classes=["gpu-hw"]) == ask("pod_replacement", about, job)


# --- what is counted -------------------------------------------------------------------------------------------------


def test_attempts_and_faults_are_counted_in_their_window():
    """What is older does not count."""
    job = running().state
    job.history.attempts["x"] = [ago(job, 100), ago(job, 10), job.time]
    job.evidence.node_faults["node1"] = [ago(job, 100), ago(job, 10)]
    assert (attempts(job, "x", 50), attempts(job, "x", 1000), attempts(job, "y", 50)) == (2, 3, 0)
    assert (faults_of(job, "node1", 50), faults_of(job, "node1", 1000), faults_of(job, "node2", 50)) == (1, 2, 0)
    assert spent(job, "x", 3, 50, "tries") == ""
    assert spent(job, "x", 2, 50, "tries") == "budget spent: 2 of 2 tries in the last 50s"


def test_an_attempt_is_charged_to_the_newest_culprit():
    """The node whose fault was the newest when it was made."""
    job = running().state
    job.evidence.node_faults = {"node1": [ago(job, 100), ago(job, 20)], "node2": [ago(job, 50)]}
    job.history.attempts["x"] = [ago(job, 200), ago(job, 99), ago(job, 45), ago(job, 20)]
    assert [charged(job, "x", node, 1000) for node in ("node1", "node2", "node3")] == [2, 1, 0]
    assert charged(job, "x", "node1", 60) == 1
    assert node_spent(job, "x", "", 0, 1000) == ""
    assert node_spent(job, "x", "node2", 1, 1000) == "per-node limit reached: 1 attempt for node2 in the last 16m 40s"
    job.evidence.other_faults = [ago(job, 99), ago(job, 46)]
    assert [charged(job, "x", node, 1000) for node in ("node1", "node2")] == [1, 0], "the script's own faults"


def test_a_cool_down_counts_from_the_newest_attempt():
    """And is over when it is over."""
    job = running().state
    assert cooling_s(job, "x", 60) == 0
    job.history.attempts["x"] = [ago(job, 100), ago(job, 10)]
    assert cooling_s(job, "x", 60) == pytest.approx(50)
    assert cooling_s(job, "x", 5) == 0


def test_the_helper_refuses_options_that_are_not_there():
    """A test that sets an option of the past would test nothing."""
    with pytest.raises(AssertionError):
        entry("stop", patience=1)
    assert chain("stop").chain[0].options == {"grace": 30}


def passes(driver: JobDriver, policy: str) -> list[PolicyConsidered]:
    found = (event.data for event in driver.events if isinstance(event.data, PolicyConsidered))
    return [data for data in found if data.policy == policy]


def started() -> JobDriver:
    driver = JobDriver(2)
    driver.start()
    return driver


def fault(driver: JobDriver) -> None:
    """A worker is killed, and the job trains again."""
    driver.make_steps(5)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    while driver.state.incident is not None and driver.wait():
        driver.settle()
    assert driver.state.incident is None


def test_what_the_job_cannot_do_at_all_is_recorded_once():
    """The first incident says what is missing; later ones are explained without another event."""
    driver = started()
    for _ in range(3):
        fault(driver)
    assert driver.state.incidents == 3
    for name, lacks in (
        ("hot_swap", ("park",)),
        ("step_retry", ("retry",)),
        ("pod_replacement", ("replace",)),
    ):
        [once] = passes(driver, name)
        assert (once.verdict, once.lacks) == ("pass", lacks)
    explainer = Explainer()
    read(driver.events, explainer)
    first, *later = [incident.policies for incident in explainer.incidents()]
    assert [asked.name for asked in first[:4]] == ["step_retry", "hot_swap", "dying_checkpoint", "pod_replacement"]
    assert [policies[:4] for policies in later] == [first[:4]] * 2
    assert verify(driver.events).ok


def test_it_is_recorded_again_when_the_missing_abilities_change():
    """A platform that comes and goes changes the answer of the policies that need it, and of no other."""
    driver = started()

    fault(driver)
    driver.own(AbilityDeclared(source="platform", abilities=("replace",)))
    fault(driver)
    assert passes(driver, "pod_replacement")[-1].lacks == ()
    driver.own(AbilityDeclared(source="platform", abilities=()))
    fault(driver)
    fault(driver)
    assert [data.lacks for data in passes(driver, "pod_replacement")] == [("replace",), (), ("replace",)]
    assert len(passes(driver, "hot_swap")) == 1


def test_requests_of_operators_get_an_answer_every_time():
    """A request's answer is its record."""
    driver = started()
    for _ in range(2):
        driver.command("pause")
        driver.settle()
    assert [data.lacks for data in passes(driver, "step_pause")] == [("pause",)] * 2


def test_a_log_of_a_master_that_decided_by_the_first_rules_verifies():
    """It records every pass in every incident, and is decided again so."""
    driver = started()
    driver.own(MasterElected(host="host", pid=2, address="unix:old", version="0.1.0"))
    for _ in range(2):
        fault(driver)
    assert [data.lacks for data in passes(driver, "hot_swap")] == [(), ()]
    assert verify(driver.events).ok
