"""Verdicts of the built-in policies, on jobs that the production engine brought there."""

import pytest

from ftcore.events.incident import Fault
from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.policies.budget import backoff_s
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.file.config import parse
from ftcore.states.evidence import EvidenceState, Repeat
from ftcore.states.incident import IncidentPhase
from ftcore.states.model import HistoryState, IncidentState, JobState, OperatorRequest, RequestsState
from ftcore.testing.driver import JobDriver


def incident(cls: str = "signal-preemption", *, kind: str = "fault", step: int | None = 5, **more) -> IncidentState:
    fault = Fault(cls=cls, detail="", nodes=("n",), ranks=(0,), root=1, summary="rank 0 on n: it broke", step=step)
    return IncidentState(
        id="i1",
        kind=kind,
        phase=IncidentPhase.OPEN,
        fault=fault,
        revision=1,
        opened=0,
        round=1,
        progress=5,
        absolute=True,
        **more,
    )


def ask(name: str, asked_about: IncidentState, job: JobState):
    return BUILT_IN[name].considers(asked_about, job, BUILT_IN[name].options())


def test_a_first_fault_is_restarted_at_once():
    """The first restart waits for nothing and says where it stands in its budget."""
    verdict = ask("process_restart", incident(), JobState(job="j", time=10**12))
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.wait_s, verdict.attempt) == (PlanKind.RESTART, 0.0, 1)
    assert verdict.reason == "restart 1 of 20 in 1h"


def test_a_request_is_passed_on():
    """Who asked for the end does not want a restart."""
    verdict = ask("process_restart", incident("request", kind="request"), JobState())
    assert verdict == Pass(reason="asked to end, not to restart")


@pytest.mark.parametrize(
    ("cls", "repeats"), [("user-code", True), ("oom-gpu", True), ("config-env", True), ("node-lost", False)]
)
def test_what_a_restart_does_not_cure_is_not_restarted_again(cls, repeats):
    """A class that repeats is passed on at its second time in a row; others are restarted again."""
    job = JobState(evidence=EvidenceState(repeat=Repeat(key="k", count=2)))
    verdict = ask("process_restart", incident(cls), job)
    assert isinstance(verdict, Pass) == repeats
    if repeats:
        assert verdict.reason == f"{cls} came 2 times in a row at step 5: a restart is no remedy"


def test_a_fault_before_any_step_is_called_so():
    """Without a completed step the place is the start."""
    verdict = ask(
        "process_restart",
        incident("user-code", step=None),
        JobState(evidence=EvidenceState(repeat=Repeat(key="k", count=2))),
    )
    assert "at the start, before any step" in verdict.reason


def test_the_budget_counts_only_its_window():
    """Restarts older than the window no longer count; as many as allowed inside it are the end."""
    now = 10**15
    job = JobState(time=now, history=HistoryState(attempts={"process_restart": [now - 3601 * 10**9] * 20}))
    assert isinstance(ask("process_restart", incident(), job), Take)
    job.history.attempts["process_restart"] = [now - 1] * 20
    verdict = ask("process_restart", incident(), job)
    assert verdict == Pass(reason="budget spent: 20 of 20 restarts in the last 1h")


def test_stop_takes_whatever_reaches_it_and_says_what_to_fix():
    """The reason holds the fault's line, its class and the advice for it."""
    verdict = ask("stop", incident("oom-gpu"), JobState())
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.outcome, verdict.exit_code) == (PlanKind.END, "failed", 1)
    assert verdict.reason.startswith("rank 0 on n: it broke (oom-gpu); use a smaller batch")


def test_stop_on_request_has_requester_and_reason():
    """A stopped run ends as stopped, with the requested exit code."""
    stop = OperatorRequest(seq=1, command="stop", who="me@here", why="lunch", exit_code=130)
    job = JobState(requests=RequestsState(stop=stop))
    verdict = ask("stop", incident("request", kind="request"), job)
    assert isinstance(verdict, Take)
    assert (verdict.outcome, verdict.exit_code, verdict.reason) == ("stopped", 130, "me@here asked for it: lunch")


def after(name: str, streak: int) -> JobState:
    """A job after so many restarts in a row."""
    return JobState(job=name, history=HistoryState(streak=streak))


def test_back_off_doubles_up_to_its_cap_with_little_jitter():
    """1, 2, 4 ... seconds, never more than a quarter beyond, never more than the cap and its quarter."""
    waits = [backoff_s(after("j", streak), "i1", 1.0, 60.0) for streak in range(100)]
    assert waits[0] == 0.0
    for streak, wait in enumerate(waits[1:], 1):
        base = min(60.0, 2.0 ** (streak - 1))
        assert base <= wait <= base * 1.25


def test_jitter_spreads_jobs_but_is_the_same_on_replay():
    """Two jobs wait differently long; one job always the same."""
    waits = [backoff_s(after(f"j{number}", 5), "i1", 1.0, 60.0) for number in range(20)]
    assert len(set(waits)) > 15
    assert waits == [backoff_s(after(f"j{number}", 5), "i1", 1.0, 60.0) for number in range(20)]


def test_verdicts_change_nothing():
    """Asking twice gives the same answer and leaves incident and job as they were."""
    driver = JobDriver()
    driver.start()
    driver.fail("node0", exitcode=-9)
    state = driver.state
    assert state.incident is not None
    before = (repr(state), repr(state.incident))
    for name in BUILT_IN:
        assert ask(name, state.incident, state) == ask(name, state.incident, state)
    assert before == (repr(state), repr(state.incident))


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_job_that_never_makes_a_step_ends_with_its_budget(budget):
    """As many restarts as allowed, each after a longer wait, then the job has failed and says why."""
    policy = parse(f"version: 1\nchain: [{{process_restart: {{max_restarts: {budget}}}}}, stop]", "p")
    driver = JobDriver(policy=policy)
    driver.start()
    for _ in range(budget + 1):
        assert not driver.ended
        driver.fail("node0", exitcode=-9)
        driver.settle(step=False)
        while driver.state.phase in ("recovering", "forming") and driver.wait():
            driver.settle(step=False)
    assert driver.state.phase == "failed"
    waits = [e.data.wait_s for e in driver.events if e.type == "policy.considered" and e.data.plan == "restart"]
    assert len(waits) == budget
    assert waits == sorted(waits)
    assert driver.state.reason().startswith(
        "rank 0 on node0 was ended by SIGKILL (external signal); find the sender of SIGKILL: the OOM killer"
    )
