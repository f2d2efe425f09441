"""Incidents as they are told from the log."""

import attrs
import msgspec
import pytest

from ftcore.cli.ctl_explain import ended_early
from ftcore.events.envelope import At
from ftcore.events.job import JobSpec
from ftcore.events.policy import AlertRaised, AlertSent
from ftcore.events.worker import RankState, WorkerError, WorkerFailed, WorkersFinished, WorkersStood, WorkersStopped
from ftcore.ids import SECOND
from ftcore.policies.file.config import parse
from ftcore.replay import Explainer, Incident, read
from ftcore.testing.driver import JobDriver

PEER_GONE = "RuntimeError: Connection closed by peer [127.0.0.1]:52710"
CONTRACT = {"id", "kind", "class", "nodes", "ranks", "root", "opened", "resolved_by"}
CONTRACT |= {"policies", "phases", "steps_lost", "state", "failures", "timeline"}
PHASES = {"detect", "decide", "wait", "stop", "rendezvous", "start", "first_step", "total"}
FAILURE = {
    "rank",
    "local_rank",
    "node",
    "restart",
    "exitcode",
    "message",
    "py_callstack",
    "raised",
    "raised_ns",
    "time",
    "time_ns",
}


def started(**options) -> JobDriver:
    driver = JobDriver(tick_s=1.0, **options)
    driver.start()
    driver.make_steps(4)
    return driver


def told(driver: JobDriver) -> list[Incident]:
    explainer = Explainer()
    read(driver.events, explainer)
    return explainer.incidents()


def test_a_killed_worker():
    """One incident with its root, its verdict, its failure and every phase that is known; they add up."""
    driver = started()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    [incident] = told(driver)
    assert (incident.id, incident.kind, incident.cls, incident.state) == (
        "i1",
        "fault",
        "signal-preemption",
        "resolved",
    )
    assert (incident.root.node, incident.root.rank) == ("node1", 1)
    assert (incident.resolved_by, incident.outcome, incident.steps_lost) == ("process_restart", "stepped", 0)
    assert {asked.verdict for asked in incident.policies[:-1]} == {"pass"}
    assert (incident.policies[-1].name, incident.policies[-1].verdict) == ("process_restart", "take")
    phases = incident.phases
    assert (phases.detect, phases.decide) == (1.0, 0.0)
    known = [phases.detect, phases.decide, phases.stop, phases.rendezvous, phases.start, phases.first_step]
    assert phases.total == sum(part for part in known if part is not None)
    [failure] = incident.failures
    assert (failure.rank, failure.local_rank, failure.node, failure.restart, failure.exitcode) == (1, 0, "node1", 0, -9)
    assert failure.message == "Signal 9 (SIGKILL) received by PID 1000"


def test_a_hang_lasts_from_its_last_step():
    """``detect`` is the standstill's length, and the total includes it."""
    driver = started()
    stopped = RankState(ranks=(1,), state="stopped", still_s=6.0, silent_s=6.0)
    driver.own(WorkersStood(round=1, stands=(stopped, RankState(ranks=(0,), op="all_reduce", silent_s=5.8))))
    driver.settle()
    [incident] = told(driver)
    phases = incident.phases
    known = [phases.decide, phases.stop, phases.rendezvous, phases.start, phases.first_step]
    assert (incident.cls, phases.detect) == ("hang", 6.0)
    assert phases.total == 6.0 + sum(part for part in known if part is not None)


def test_a_hang_names_who_hangs_and_who_waits():
    """Those to blame first, with their node; incidents of another kind have none."""
    driver = JobDriver(3, tick_s=1.0)
    driver.start()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    sleeps = RankState(ranks=(1,), ends_s=1e6, still_s=60.0, silent_s=60.0, stack="a.py:2 (f)\na.py:9 (<module>)")
    peers = RankState(ranks=(0, 2), count=2, op="all_reduce", silent_s=60.0, held_s=60.0, step=4)
    driver.own(WorkersStood(round=driver.state.rounds.newest, stands=(peers, sleeps)))
    driver.settle()
    killed, hung = told(driver)
    assert killed.hang == ()
    first, other = hung.hang
    assert (first.role, first.node, first.ranks, first.frames) == (
        "hangs",
        "node1",
        (1,),
        ("a.py:2 (f)", "a.py:9 (<module>)"),
    )
    assert (other.role, other.node, other.ranks, other.step) == ("waits", "", (0, 2), 4)


def test_a_pause_has_a_length():
    """It counts from the step boundary to the operator's ``resume``; None while the job is paused."""
    driver = started(abilities=("pause",))
    driver.command("pause")
    driver.settle()
    [pause] = told(driver)
    assert (pause.outcome, pause.in_place, pause.paused_s) == ("paused", True, None)
    driver.command("checkpoint")  # dropped
    driver.command("resume")
    driver.settle()
    pause = told(driver)[0]
    assert pause.paused_s == 2.0 and pause.phases.first_step is None


@pytest.mark.parametrize(("exitcode", "outcome"), [(1, "failed"), (None, "stopped")])
def test_an_incident_that_ended_the_job_says_how(exitcode, outcome):
    """``stop`` took it: the job failed after a fault, or an operator stopped it."""
    driver = started(policy=parse("version: 1\nchain: [stop]\n", "p"))
    if exitcode is None:
        driver.command("stop")
    else:
        driver.fail("node1", exitcode=exitcode)
    driver.settle()
    [incident] = told(driver)
    assert (incident.resolved_by, incident.outcome, incident.job_ended) == ("stop", "ended", outcome)


def test_the_json_holds_what_the_contract_names():
    """Scripts find the agreed names, at every level, in plain JSON."""
    driver = started()
    driver.fail("node1", message="ValueError: x")
    driver.settle()
    made = msgspec.json.decode(msgspec.json.encode(told(driver)[0].to_json()))
    assert set(made) >= CONTRACT
    assert set(made["phases"]) == PHASES
    assert set(made["root"]) == {"node", "rank"}
    assert set(made["policies"][0]) == {"name", "verdict", "reason"}
    assert set(made["failures"][0]) >= FAILURE
    assert made["opened"].endswith("Z")


def test_the_first_failure_comes_first_though_the_victim_reported_first():
    """The root's failure leads, whoever was heard first, and both are told."""
    driver = started()
    driver.fail("node0", message=PEER_GONE)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    [incident] = told(driver)
    assert [failure.rank for failure in incident.failures] == [1, 0]
    assert incident.root.rank == 1
    assert incident.revisions == 2
    assert incident.failures[1].message == PEER_GONE


def test_what_the_error_file_told_is_passed_on():
    """Message, traceback and timestamp come from the error file as they are."""
    driver = started()
    node = driver.state.membership.nodes["node0"]
    error = WorkerError(message="ValueError: x", py_callstack="Traceback ...", timestamp=1700000000)
    driver.say(
        "node0",
        WorkerFailed(
            node="node0", incarnation=node.incarnation, round=1, rank=0, local_rank=0, pid=7, exitcode=1, error=error
        ),
    )
    [failure] = told(driver)[0].failures
    assert (failure.message, failure.py_callstack, failure.raised) == (
        "ValueError: x",
        "Traceback ...",
        1700000000 * 10**9,
    )


def test_without_an_error_file_the_last_line_speaks():
    """The last line of output stands in for a message; without any there is none."""
    driver = started()
    driver.fail("node0", exitcode=3, tail="loading\nno such table\n\n")
    driver.fail("node1", exitcode=4)
    [incident] = told(driver)
    assert [failure.message for failure in incident.failures] == ["no such table", None]


def test_a_lost_node_has_no_rank_and_no_known_begin():
    """What nobody measured is None: nobody knows when a silent node died."""
    driver = started(nodes=2)
    driver.lose("node1")
    driver.join("node1")
    driver.settle()
    [incident] = told(driver)
    assert (incident.root.node, incident.root.rank) == ("node1", None)
    assert incident.phases.detect is None
    assert incident.phases.total is not None
    [failure] = incident.failures
    assert (failure.rank, failure.exitcode, failure.message) == (None, None, "no frame for 2 s")


def test_a_fact_that_was_long_under_way_counts_once():
    """What passed before the master took the opening fact in is ``detect``, and no part of the phases behind it."""
    driver = started()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    [incident] = told(driver)
    opening = incident.first_seq
    events = []
    for event in driver.events:
        if event.seq == opening:
            early = At(wall=event.at.wall - 5 * SECOND, mono=event.at.mono - 5 * SECOND, boot=event.at.boot)
            event = msgspec.structs.replace(event, at=early)
        events.append(event)
    explainer = Explainer()
    read(events, explainer)
    [late] = explainer.incidents()
    assert late.phases == attrs.evolve(incident.phases, detect=6.0, total=incident.phases.total + 5)
    assert incident.phases.detect == 1.0


@pytest.mark.parametrize("off_s", [3600, -3600])
def test_a_source_whose_clock_is_off_is_told_on_the_masters(off_s):
    """What a node saw whose clock is an hour off stands at its time by the master's clock; ``detect`` as well."""
    driver = started()
    driver.fail("node1", exitcode=-9)
    driver.settle()
    [incident] = told(driver)
    off = []
    for event in driver.events:
        if event.at is not None:
            early_s = 5 if event.seq == incident.first_seq else 0
            wall = event.at.wall + (off_s - early_s) * SECOND
            off.append(
                msgspec.structs.replace(event, at=At(wall=wall, mono=event.at.mono - early_s * SECOND, boot="boot"))
            )
        else:
            off.append(event)
    explainer = Explainer()
    read(off, explainer)
    [known] = explainer.incidents()
    assert known.phases.detect == 5.0
    noticed = known.failures[0].time
    assert noticed < known.opened < noticed + 60 * 10**9


def test_an_open_incident_is_told_as_far_as_it_went():
    """While it is open nothing is invented: no end, no total."""
    driver = started()
    driver.fail("node1", exitcode=-9)
    [incident] = told(driver)
    assert (incident.state, incident.closed, incident.resolved_by, incident.outcome) == ("acting", None, None, None)
    assert (incident.phases.stop, incident.phases.total) == (None, None)


def test_a_request_has_no_culprit():
    """A stop that somebody asked for has no root and no failures, and ends with the job."""
    driver = started()
    driver.stop()
    driver.settle()
    [incident] = told(driver)
    assert (incident.kind, incident.root.node, incident.failures) == ("request", None, ())
    assert (incident.resolved_by, incident.outcome) == ("stop", "ended")
    assert [(asked.name, asked.verdict) for asked in incident.policies][-1] == ("stop", "take")
    assert incident.phases.stop is not None
    assert incident.phases.first_step is None


def test_a_failed_plan_counts_as_deciding():
    """After an escalation in the same incident the phases are those of the plan that held."""
    driver = started()
    driver.fail("node1", exitcode=-9)
    driver.settle(step=False)
    driver.fail("node0", exitcode=-11)
    driver.settle()
    while driver.state.phase == "forming" and driver.wait():
        driver.settle()
    [incident] = told(driver)
    assert incident.phases.decide is not None
    assert incident.phases.decide > 0
    parts = incident.phases
    known = (parts.detect, parts.decide, parts.stop, parts.rendezvous, parts.start, parts.first_step)
    assert parts.total is not None
    assert abs(parts.total - sum(part or 0 for part in known)) < 1e-6
    assert [failure.restart for failure in incident.failures] == [1, 0] or incident.failures[0].rank == 1


def test_incidents_of_two_runs_keep_apart():
    """A second run in the same log goes on counting, and knows its run."""
    driver = started()
    driver.stop()
    driver.settle()
    driver.start()
    driver.fail("node0", exitcode=-9)
    driver.settle()
    assert [(incident.id, incident.run) for incident in told(driver)] == [("i1", 1), ("i2", 2)]
    assert told(driver)[1].failures[0].restart == 0


def in_place(**options) -> JobDriver:
    text = "version: 1\nchain:\n- step_retry\n- process_restart\n- step_pause\n- stop\n"
    abilities = ("retry", "replicas", "pause", "save")
    return started(policy=parse(text, "policy.yaml"), abilities=abilities, **options)


def test_a_retry_is_a_round_of_the_same_processes():
    """Its ranks leave their groups instead of being stopped, and the phases add up."""
    driver = in_place()
    driver.observe("node1", "uce", message="uncorrectable memory error")
    driver.settle()
    driver.make_steps(1)
    [incident] = told(driver)
    assert (incident.resolved_by, incident.outcome) == ("step_retry", "stepped"), incident.policies
    phases = incident.phases
    assert min(phases.stop, phases.rendezvous, phases.start, phases.first_step) > 0
    known = [phases.detect, phases.decide, phases.stop, phases.rendezvous, phases.start, phases.first_step]
    assert phases.total == sum(part for part in known if part is not None)
    assert any("park the workers of round 1" in step.what for step in incident.timeline)
    assert not any("stop the workers" in step.what for step in incident.timeline)


def test_a_refused_order_is_told_with_what_came_after():
    """The refusal and the escalation stand between the two plans; the phases are those of the second."""
    driver = in_place()
    driver.refuses["node0"] = ("save_checkpoint",)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    [incident] = told(driver)
    assert incident.resolved_by == "process_restart"
    assert [step.type for step in incident.timeline][1:3] == ["order.refused", "incident.escalated"]
    assert "node0 refused an order: " in incident.timeline[1].what
    assert incident.phases.stop is not None and incident.phases.decide > 0


def test_a_pause_is_a_request_that_is_fulfilled():
    """What it took is told as the carrying out of an order; no step is waited for."""
    driver = in_place()
    driver.command("pause", why="maintenance")
    driver.settle()
    [incident] = told(driver)
    assert (incident.kind, incident.outcome, incident.state) == ("request", "paused", "resolved")
    assert (incident.phases.stop, incident.phases.first_step) == (None, None)
    assert incident.phases.start > 0


def test_a_message_and_a_checkpoint_count_as_deciding():
    """Neither ends an incident: the chain goes on, and the plan that held begins with its own verdict."""
    text = "version: 1\nchain:\n- alert: {to: [env:CHAT]}\n- dying_checkpoint\n- process_restart\n- stop\n"
    driver = started(policy=parse(text, "policy.yaml"), abilities=("save", "replicas"))
    driver.fail("node1", exitcode=-9)
    driver.settle()
    [incident] = told(driver)
    assert incident.resolved_by == "process_restart"
    said = [step.type for step in incident.timeline]
    assert said[:2] == ["alert.raised", "incident.continued"] and "checkpoint.committed" in said
    assert incident.phases.decide > 0 and incident.phases.stop is not None


def test_a_node_that_is_kept_out():
    """An evicted node's release and quarantine are told, and the world that goes on without it."""
    driver = started(spec=JobSpec(argv=("train.py",), nodes_min=1, nodes_max=2))
    driver.command("evict", node="node1")
    driver.settle()
    [incident] = told(driver)
    assert incident.outcome == "stepped"
    said = {step.type: step.what for step in incident.timeline}
    assert "node1 is quarantined" in said["node.quarantined"] and "without node1" in said["world.formed"]


def test_a_request_that_no_policy_takes():
    """It is exhausted, which is no failure of the job, and has no plan whose phases could be told."""
    driver = started()
    driver.command("pause")
    [incident] = told(driver)
    assert (incident.kind, incident.state, incident.resolved_by) == ("request", "exhausted", None)
    assert (incident.phases.decide, incident.phases.start, incident.timeline) == (None, None, ())


def test_ranks_that_ended_early_are_the_cause_of_collateral_faults():
    """Of a node that finished, and of one that was stopped later; the others only lost their connections."""
    driver = JobDriver(nodes=3, slots=2)
    driver.start()
    driver.make_steps(4)
    done, partly = driver.state.membership.nodes["node2"], driver.state.membership.nodes["node1"]
    driver.say("node2", WorkersFinished(node="node2", incarnation=done.incarnation, round=done.round, step=4))
    driver.fail("node0", message=PEER_GONE)
    order = next(effect for effect in driver.state.orders.open if effect.startswith("stop_workers"))
    life, round_ = partly.incarnation, partly.round
    stopped = WorkersStopped(
        node="node1", incarnation=life, round=round_, exitcodes=(None, -15), effect=order, finished=(0,)
    )
    driver.say("node1", stopped)
    driver.settle()
    [incident] = told(driver)
    assert incident.cls == "collateral"
    assert [(each.node, each.rank) for each in incident.ended_early] == [("node2", 4), ("node2", 5), ("node1", 2)]
    assert ended_early(incident.ended_early).startswith("ranks 2, 4, 5 on node2, node1 had ended with exit code 0")
    assert ended_early(incident.ended_early[:1]).startswith("rank 4 on node2 had ended with exit code 0")


def test_ranks_that_ended_are_not_the_cause_of_another_fault():
    """An exception has its own cause."""
    driver = started()
    node = driver.state.membership.nodes["node1"]
    driver.say("node1", WorkersFinished(node="node1", incarnation=node.incarnation, round=node.round, step=4))
    driver.fail("node0", message="ValueError: x")
    assert told(driver)[0].ended_early == ()


def test_the_alert_about_the_end_was_sent_after_it():
    """Its result belongs to the incident that ended the job, though the incident is closed by then."""
    driver = started(policy=parse("version: 1\nchain:\n- alert: {to: [env:CHAT]}\n- stop\n", "policy.yaml"))
    driver.fail("node1", exitcode=-9)
    driver.settle()
    assert driver.ended
    last = [event.seq for event in driver.events if isinstance(event.data, AlertRaised)][-1]
    driver.own(AlertSent(alert=last, ok=True, error=""))
    [incident] = told(driver)
    assert (incident.timeline[-1].type, incident.timeline[-1].what) == (
        "alert.sent",
        f"the alert of event {last} is sent",
    )


def test_the_newest_incidents_are_enough_for_a_long_log() -> None:
    """With ``keep``, older incidents are forgotten; the newest one is the same as without."""
    driver = JobDriver(nodes=2)
    driver.start()
    for _ in range(3):
        driver.fail("node1", exitcode=-9)
        driver.settle()
    everything, newest = Explainer(), Explainer(keep=1)
    assert newest.newest() is None
    for event in driver.events:
        everything.feed(event)
        newest.feed(event)
        assert newest.newest() == everything.newest()
    assert len(everything.incidents()) == 3
    assert newest.incidents() == everything.incidents()[-1:]
    assert newest.state.seq == driver.events[-1].seq
