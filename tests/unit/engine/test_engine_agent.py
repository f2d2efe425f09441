"""The agent's core: orders that it obeys or refuses, and the facts that it reports."""

import attrs
import pytest

from ftcore.commands import (
    CheckHealth,
    FindBoundary,
    OpenStore,
    ParkWorkers,
    PauseWorkers,
    ReleaseNode,
    ReplaceNodes,
    ResumeWorkers,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.engine import actions as act
from ftcore.engine import agent as core
from ftcore.engine.orders import Order, Slice
from ftcore.events.node import NodeJoined, OrderObeyed, OrderRefused
from ftcore.events.worker import (
    WorkersFinished,
    WorkersStarted,
    WorkersStepped,
    WorkersStopped,
    WorkersUnstartable,
)
from ftcore.events.world import StoreFailed, StoreOpened
from ftcore.ids import EffectId, Round, Term
from ftcore.ports import Performed, Progress, WorkerExit
from ftcore.states.agent import AgentPhase
from ftcore.timing import Timing

PART = Slice(
    group_rank=0,
    base_rank=2,
    slots=2,
    size=4,
    role_base_rank=2,
    role_size=4,
    nodes=2,
    store_host="here",
    store_port=1,
    restart_count=0,
    max_restarts=3,
)
TIMING = Timing(orphan_grace_s=10.0)


def order(command, effect: str, term: int = 1) -> Order:
    return Order(effect=EffectId(effect), term=Term(term), command=command, slice=PART)


def start(round_: int, term: int = 1) -> Order:
    return order(StartWorkers(round=Round(round_)), f"start.{round_}", term)


def stop(round_: int, term: int = 1) -> Order:
    return order(StopWorkers(round=Round(round_), grace_s=5.0), f"stop.{round_}", term)


def page(steps: int, step: int = 0, mono: int = 0) -> Progress:
    return Progress(steps=steps, step=step or steps, absolute=False, mono=mono, loss=0.5)


def ended(local_rank: int, code: int, round_: int = 1) -> WorkerExit:
    return WorkerExit(round=Round(round_), local_rank=local_rank, pid=7, exitcode=code, mono=9)


def told(actions: act.Actions) -> list[object]:
    return [action.data for action in actions if isinstance(action, act.Tell | act.TellFailure)]


def joined(life: str) -> NodeJoined:
    return NodeJoined(node="a", incarnation=life, slots=2, host="h", pid=1, address="x", version="v")


@pytest.fixture
def agent() -> core.AgentCore:
    made = core.AgentCore(
        "a",
        2,
        TIMING,
        able=(FindBoundary, PauseWorkers, ResumeWorkers, ParkWorkers, SaveCheckpoint, CheckHealth, ReplaceNodes),
        lead_delay_s=4,
    )
    made.begin(joined("1"))
    made.welcomed(Term(1))
    return made


@pytest.fixture
def running(agent: core.AgentCore) -> core.AgentCore:
    (begun,) = agent.obey(start(1))
    agent.started(begun, (7, 8), "fork")
    return agent


def test_an_order_seen_twice_is_carried_out_once(agent):
    """The second delivery of an effect changes nothing."""
    assert len(agent.obey(start(1))) == 1
    assert agent.obey(start(1)) == []


def test_an_order_of_an_older_term_is_not_obeyed(agent):
    """An agent that has obeyed a newer master ignores orders of the deposed one."""
    agent.obey(order(OpenStore(round=Round(1)), "store.1", term=3))
    assert agent.obey(start(1, term=2)) == []
    agent.stream_broken()
    agent.welcomed(Term(5))
    assert agent.obey(start(1, term=4)) == []


@pytest.mark.parametrize("round_", [1, 2])
def test_a_start_of_an_older_or_the_same_round_is_not_obeyed(agent, round_):
    """A round is started at most once, and never behind a newer one."""
    agent.obey(start(2))
    assert agent.obey(order(StartWorkers(round=Round(round_)), "again")) == []


def test_a_stop_of_an_older_round_leaves_the_newer_alone(agent):
    """An order to stop that a newer start has overtaken stops nothing."""
    (begun,) = agent.obey(start(2))
    agent.started(begun, (7, 8), "fork")
    assert agent.obey(stop(1)) == []
    assert agent.running


def test_a_stop_gives_up_a_start_that_is_under_way(agent):
    """Only the stop is answered, even if the start succeeds after all."""
    (begun,) = agent.obey(start(1))
    (stopping,) = agent.obey(stop(1))
    assert agent.started(begun, (7, 8), "fork") == []
    (answer,) = told(agent.stopped(stopping, (-15, -15)))
    assert isinstance(answer, WorkersStopped)
    assert (answer.effect, answer.round, answer.exitcodes) == ("stop.1", 1, (-15, -15))
    assert agent.stopped(stopping, ()) == []


def test_workers_that_ended_before_a_stop_are_named(running):
    """A worker that ended with code 0 may be the cause of the others' failures."""
    assert running.exited(ended(1, 0), (None, None)) == []
    (stopping,) = running.obey(stop(1))
    (answer,) = told(running.stopped(stopping, (-15, None)))
    assert answer.finished == (1,)


def test_a_start_waits_for_the_stop_before_it(running):
    """Workers of two rounds never live at the same time, and the answer to the stop says nothing of the new round."""
    (stopping,) = running.obey(stop(1))
    assert running.obey(start(2)) == []
    answer, begun = running.stopped(stopping, (-15, -15))
    assert answer.data.round == 1
    assert begun == act.StartRound("start.2", Round(2), PART)
    assert isinstance(told(running.started(begun, (9, 9), "fork"))[0], WorkersStarted)


def test_a_waiting_start_is_given_up_by_a_newer_stop(running):
    """Stop, start, stop: nothing is started any more, and both stops are answered for the newest round."""
    (first,) = running.obey(stop(1))
    running.obey(start(2))
    (second,) = running.obey(stop(2))
    answers = [*running.stopped(first, ()), *running.stopped(second, ())]
    assert [(data.effect, data.round) for data in told(answers)] == [("stop.1", 2), ("stop.2", 2)]


def test_a_failed_start_is_reported(agent):
    """The order is answered with the reason."""
    (begun,) = agent.obey(start(1))
    (answer,) = told(agent.unstartable(begun, "no such file"))
    assert isinstance(answer, WorkersUnstartable)
    assert (answer.effect, answer.error, agent.running) == ("start.1", "no such file", False)


def test_a_worker_that_ends_during_the_start_is_reported_after_it(agent):
    """An early exit of a worker is not lost."""
    (begun,) = agent.obey(start(1))
    assert agent.exited(ended(1, 3), (None, page(0))) == []
    first, second = told(agent.started(begun, (7, 8), "fork"))
    assert isinstance(first, WorkersStarted)
    assert (second.rank, second.exitcode, second.step) == (3, 3, None)


def test_ends_of_other_rounds_and_of_stopped_workers_are_no_news(running):
    """A stale exit is dropped."""
    assert running.exited(ended(0, 1, round_=7), (None, None)) == []
    running.obey(stop(1))
    assert running.exited(ended(0, 1), (None, None)) == []


def test_a_node_has_finished_when_all_its_workers_ended_with_0(running):
    """The first steps are reported with it, if the pages were not looked at before."""
    assert running.exited(ended(0, 0), (page(5), page(4))) == []
    stepped, finished = told(running.exited(ended(1, 0), (page(5), page(4))))
    assert isinstance(stepped, WorkersStepped)
    assert stepped.step == 1
    assert isinstance(finished, WorkersFinished)
    assert finished.step == 4
    assert not running.running


def test_a_node_with_a_failed_worker_never_finishes(running):
    """The other worker's end with 0 is not the end of the work."""
    (failure,) = told(running.exited(ended(0, 1), (page(3), None)))
    assert (failure.step, failure.rank) == (3, 2)
    assert running.exited(ended(1, 0), (page(3), None)) == []


def test_first_steps_are_reported_once_when_all_workers_completed_one(running):
    """Progress of some workers is not the node's."""
    assert running.looked((page(3), None), 0.0) == []
    assert running.awaits_steps
    (stepped,) = told(running.looked((page(3, step=13, mono=1), page(2, step=13, mono=2)), 0.0))
    assert (stepped.step, running.awaits_steps) == (11, False)
    assert running.looked((page(4), page(4)), 0.0) == []


def test_a_first_step_waits_for_the_scripts_own_number(running):
    """The script may report which step it was, a while after the optimizer's step."""
    counted, reported = page(1, mono=10**9), attrs.evolve(page(1, step=14, mono=2 * 10**9), absolute=True)
    assert running.looked((counted, reported), 2.0) == []
    assert running.awaits_steps
    (stepped,) = told(running.looked((reported, reported), 2.5))
    assert (stepped.step, stepped.absolute) == (14, True)


def test_a_script_without_reports_is_not_waited_for(running):
    counted = page(1, mono=10**9)
    assert running.looked((counted, counted), 1.0) == []
    (stepped,) = told(running.looked((counted, counted), 3.0))
    assert (stepped.step, stepped.absolute) == (1, False)


def test_an_orphan_stops_workers_without_progress(running):
    """Only if there is an unreachable leader, and no step is completed; the reason is reported."""
    still = (page(1, mono=0), None)
    running.looked_up(0.0, True)
    assert running.waited(99.0, still) == []
    running.stream_broken()
    running.looked_up(100.0, True)
    running.looked_up(105.0, True)
    assert running.waited(109.0, still) == []
    assert running.waited(115.0, (page(2, mono=int(108e9)), None)) == []
    (stopping,) = running.waited(111.0, still)
    assert running.waited(112.0, still) == []
    (answer,) = told(running.stopped(stopping, (-15, -15)))
    assert (answer.effect, answer.exitcodes) == ("", ())
    assert "the leader is unreachable from this node" in answer.reason


def test_an_orphan_stops_nothing_while_no_leader_is_known(running):
    """An unavailable store is no sign of a leader; when it is back, the full grace period starts."""
    silent = (None, None)
    running.stream_broken()
    assert running.waited(1000.0, silent) == []
    running.looked_up(1000.0, True)
    running.looked_up(1005.0, False)
    assert running.waited(2000.0, silent) == []
    running.looked_up(2000.0, True)
    assert running.waited(2009.0, silent) == []
    running.welcomed(Term(1))
    running.stream_broken()
    assert running.waited(3000.0, silent) == []
    running.looked_up(3000.0, True)
    assert isinstance(running.waited(3011.0, silent)[0], act.StopRound)


def test_a_finished_node_does_not_wait_for_a_master_without_limit(running):
    """It leaves with its workers' own outcome; while a master is there, it waits as long as the others train."""
    for rank in (0, 1):
        running.exited(ended(rank, 0), (page(3), page(3)))
    assert running.waited(1e6, ()) == []
    running.stream_broken()
    assert running.waited(2e6, ()) == []
    assert running.waited(2e6 + core.FINISHED_S, ()) == []
    running.welcomed(Term(1))
    running.stream_broken()
    assert running.waited(3e6, ()) == []
    (leave,) = running.waited(3e6 + core.FINISHED_S + 1, ())
    assert (leave.exit_code, leave.outcome) == (0, "left")
    assert "finished with code 0" in leave.reason
    assert running.waited(4e6, ()) == []


def test_stores_are_answered(agent):
    """Opened, failed, lost later."""
    (first,) = agent.obey(order(OpenStore(round=Round(1)), "store.1"))
    (second,) = agent.obey(order(OpenStore(round=Round(2)), "store.2"))
    (opened,) = told(agent.store_opened(first, "h", 1))
    assert opened == StoreOpened(node="a", incarnation="1", round=1, host="h", port=1, effect="store.1")
    (failed,) = told(agent.store_failed(second, "no port"))
    assert failed == StoreFailed(node="a", incarnation="1", round=2, effect="store.2", error="no port")
    assert told(agent.store_lost(Round(2)))[0].effect == ""


def test_what_the_supervisor_cannot_do_is_refused(agent):
    """So are orders for the platform, whatever the supervisor says, and orders to workers that do not run."""
    for command, why in (
        (PauseWorkers(round=Round(1)), "no workers of round 1 run here"),
        (ReplaceNodes(nodes=("b",), isolate=False), "cannot launch a replacement for b"),
    ):
        (refused,) = told(agent.obey(order(command, f"do.{why}")))
        assert isinstance(refused, OrderRefused)
        assert why in refused.reason
    incapable = core.AgentCore("a", 2, TIMING)
    incapable.begin(joined("1"))
    (refused,) = told(incapable.obey(order(PauseWorkers(round=Round(1)), "pause")))
    assert refused.reason == "this agent and its workers cannot pause the workers of round 1"


def test_what_leaves_processes_in_place_is_performed_and_answered(running):
    """Parked workers no longer run as far as ends and beats are concerned; paused ones do."""
    (pause,) = running.obey(order(PauseWorkers(round=Round(1)), "pause"))
    (answer,) = told(running.performed(pause, Performed(5)))
    assert answer == OrderObeyed(node="a", incarnation="1", round=1, effect="pause", step=5)
    assert running.running
    (check,) = running.obey(order(CheckHealth(round=Round(2)), "check"))
    assert told(running.checked(check, act.Findings(verdict="faulty", detail="NaN")))[0].verdict == "faulty"
    (park,) = running.obey(order(ParkWorkers(round=Round(1), grace_s=1.0), "park"))
    assert isinstance(told(running.failed_to(park, "stuck"))[0], OrderRefused)
    assert running.running
    (park,) = running.obey(order(ParkWorkers(round=Round(1), grace_s=1.0), "park.2"))
    running.performed(park, Performed(5))
    assert not running.running
    assert running.pulse((page(5), page(5))) == core.Pulse(round=0)
    assert told(running.exited(ended(0, -9), (page(5), page(5))))[0].exitcode == -9


def test_orders_in_place_are_carried_out_one_after_the_other(running):
    """A second order waits for the answer to the first; a stop drops queued orders."""
    (find,) = running.obey(order(FindBoundary(round=Round(1)), "find"))
    assert running.obey(order(PauseWorkers(round=Round(1), boundary=6), "pause")) == []
    obeyed, pause = running.performed(find, Performed(5, 6))
    assert (obeyed.data.effect, obeyed.data.boundary, pause.effect) == ("find", 6, "pause")
    assert running.obey(order(FindBoundary(round=Round(1)), "find.2")) == []
    refused, find = running.failed_to(pause, "no")
    assert (refused.data.effect, find.effect) == ("pause", "find.2")
    assert running.obey(order(PauseWorkers(round=Round(1), boundary=7), "pause.2")) == []
    running.obey(stop(1))
    assert running.performed(find, Performed(5)) == []


def test_an_order_to_resume_waits_for_no_other_one(running):
    """A pause that workers never come to does not delay it; no queued order takes effect after it."""
    (pause,) = running.obey(order(PauseWorkers(round=Round(1), boundary=6), "pause"))
    assert running.obey(order(FindBoundary(round=Round(1)), "find")) == []
    refused, resume = running.obey(order(ResumeWorkers(round=Round(1)), "resume"))
    assert (refused.data.effect, refused.data.reason) == ("find", "a later order to resume revoked it")
    assert running.obey(order(FindBoundary(round=Round(1)), "find.2")) == []
    (obeyed,) = told(running.performed(resume, Performed(5)))
    assert obeyed.effect == "resume"
    refused, find = running.failed_to(pause, "a later order revoked it")
    assert (refused.data.effect, find.effect) == ("pause", "find.2")


def test_parked_workers_can_save_and_nothing_else(running):
    """Their state is whole, though they are out of their round."""
    (park,) = running.obey(order(ParkWorkers(round=Round(1), grace_s=1.0), "park"))
    running.performed(park, Performed(5))
    (save,) = running.obey(order(SaveCheckpoint(round=Round(1)), "save"))
    assert told(running.performed(save, Performed(5)))[0].effect == "save"
    assert isinstance(told(running.obey(order(PauseWorkers(round=Round(1)), "pause")))[0], OrderRefused)


def test_a_new_start_drops_a_park_that_is_under_way(running):
    """An order for the workers of one round is not carried out on those of the next."""
    (park,) = running.obey(order(ParkWorkers(round=Round(1), grace_s=1.0), "park"))
    (begun,) = running.obey(start(2))
    running.started(begun, (3, 4), "fork")
    assert running.performed(park, Performed(5)) == []
    assert running.running


def test_a_released_agent_starts_nothing_more(agent):
    """It leaves with the job's outcome, once."""
    release = ReleaseNode(outcome="failed", exit_code=1, reason="why")
    assert agent.obey(order(release, "release")) == [act.Leave(1, "failed", "why")]
    assert agent.obey(order(release, "release.2")) == []
    assert agent.obey(start(1)) == []
    assert agent.leave_ordered("SIGTERM", 5) == []
    assert told(agent.farewell("failed"))[0].reason == "failed"
    assert not agent.unheard


def test_an_agent_that_joins_after_the_end_leaves_without_a_farewell(agent):
    """The run ended without it: it leaves with the run's outcome, and sends no fact."""
    release = ReleaseNode(outcome="succeeded", exit_code=0, reason="why")
    assert agent.refused("the run has succeeded", rejoin=False, release=release) == [act.Leave(0, "succeeded", "why")]
    assert agent.unheard


def test_a_fenced_agent_begins_a_new_life(running):
    """It rejoins without obeyed orders, and answers to actions of the old incarnation are ignored."""
    (stopping,) = running.obey(stop(1))
    assert running.refused("lost", rejoin=True) == [act.Rejoin("lost")]
    assert running.refused("lost", rejoin=True) == []
    running.halt()
    assert told(running.begin(joined("2")))[0].incarnation == "2"
    assert (running.phase, running.round, running.term) == (AgentPhase.CONNECTING, 0, 0)
    assert running.stopped(stopping, ()) == []


def test_an_unwanted_agent_gives_up(agent):
    """Unless it leaves anyway."""
    assert agent.refused("wrong job", rejoin=False) == [act.GiveUp("wrong job")]


def test_a_candidate_is_started_after_a_time_without_a_leader(agent):
    """After the delay, then at most once per lease; a welcome resets the delay."""
    assert agent.leaderless(10.0, 0) == []
    assert agent.leaderless(14.0, 33) == [act.Lead(33)]
    assert agent.leaderless(15.0, 33) == []
    assert agent.leaderless(17.0, 33) == [act.Lead(33)]
    assert agent.standby_wanted() == [act.Lead(None)]
    assert core.AgentCore("a", 2, TIMING).leaderless(99.0, 0) == []


def test_a_heartbeat_has_the_slowest_step(running):
    """Of workers that report steps; none after they are stopped."""
    assert running.pulse((page(5), page(4))) == core.Pulse(round=1, step=4, loss=0.5, reporting=2)
    assert running.pulse((None, None)) == core.Pulse(round=1)
    running.obey(stop(1))
    assert running.pulse((page(5), page(4))) == core.Pulse(round=0)
