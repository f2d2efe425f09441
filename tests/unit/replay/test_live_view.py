"""The live view: what is shown of a job at each moment of its log."""

import json
from typing import Any

import attrs
import pytest

from ftcore.events.envelope import Event
from ftcore.events.job import JobSpec
from ftcore.ids import SECOND
from ftcore.policies.file.config import parse
from ftcore.replay.explain import Explainer
from ftcore.replay.live import Links, LiveReader, LiveView
from ftcore.replay.live.reader import awaited_view
from ftcore.replay.live.view import TEXT_MAX, moment_text
from ftcore.replay.reading import fold_log
from ftcore.testing.driver import JobDriver


@attrs.frozen(kw_only=True)
class Beat:
    node: str
    heard_s: float = 0.2
    round: int = 1
    step: int | None = 7
    absolute: bool = True
    loss: float | None = None
    step_s: float | None = None
    own_s: float | None = None
    slow: str = ""


def running(text: str = "- process_restart\n- stop\n", **options: Any) -> JobDriver:
    policy = parse(f"version: 1\nchain:\n{text}", "policy.yaml")
    driver = JobDriver(policy=policy, **options)
    driver.start()
    driver.make_steps(9)
    return driver


def reader_of(events: list[Event]) -> LiveReader:
    reader = LiveReader("demo")
    for event in events:
        reader.feed(event)
    return reader


def shown(driver: JobDriver, later_s: float = 0.0, links: Links | None = None) -> LiveView:
    return reader_of(driver.events).view(driver.events[-1].time + int(later_s * SECOND), links)


def row(view: LiveView, name: str) -> str:
    return next((each.text for each in view.rows if each.name == name), "")


def test_a_running_job() -> None:
    """State, world, step with its age, nodes in one group, no incident, no spare; and the words of the narration."""
    view = shown(running(nodes=3, slots=2), later_s=3)
    assert (view.state, view.tone, view.ended, view.open_incident) == ("running", "good", False, None)
    assert row(view, "world") == "round 1: 6 ranks on 3 nodes"
    assert row(view, "step").endswith("(3 s ago)")
    assert [(group.state, group.count, group.names) for group in view.groups] == [("running", 3, "node0, node1, node2")]
    assert [node.rank_range for node in view.nodes] == ["0-1", "2-3", "4-5"]
    assert view.spares == "none" and view.notices == ()
    assert view.newest_events[-1].text == "round 1: 3 nodes, 6 ranks"


def test_the_clock_of_the_open_incident_runs() -> None:
    """The phase that runs is the last one and grows with the time of the view; ended ones stay as they are."""
    driver = running(nodes=2)
    driver.fail("node1", exitcode=-9)
    reader, at = reader_of(driver.events), driver.events[-1].time
    first, then = reader.view(at + SECOND).open_incident, reader.view(at + 5 * SECOND).open_incident
    assert first is not None and then is not None
    assert [phase.name for phase in first.phase_clocks] == [phase.name for phase in then.phase_clocks]
    assert [phase.running for phase in first.phase_clocks] == [*[False] * (len(first.phase_clocks) - 1), True]
    assert first.phase_clocks[-1].name == "stop"
    assert (first.phase_clocks[-1].seconds, then.phase_clocks[-1].seconds) == (1.0, 5.0)
    assert first.phase_clocks[:-1] == then.phase_clocks[:-1]
    assert then.seconds - first.seconds == 4.0
    assert first.doing.startswith("process_restart: restart 1 of") and first.next == ("stop",)
    assert first.waits and first.limit_text.startswith("in ")


def test_the_phases_are_those_of_explain() -> None:
    """At the end of an incident, the view's phases are those that ``ftctl explain`` reports, to the nanosecond."""
    driver = running(nodes=2)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    reader, found = LiveReader("demo"), {}
    for event in driver.events:
        before = reader.view(event.time).open_incident
        reader.feed(event)
        if before is not None:
            found[before.id] = {phase.name: phase.seconds for phase in before.phase_clocks}
    explainer = Explainer()
    for event in driver.events:
        explainer.feed(event)
    [incident] = explainer.incidents()
    phases = {name: value for name, value in attrs.asdict(incident.phases).items() if value is not None}
    del phases["total"]
    assert found["i1"] == pytest.approx(phases, abs=1e-9)
    assert set(phases) >= {"detect", "decide", "stop", "rendezvous", "start", "first_step"}
    assert reader.view(driver.events[-1].time).open_incident is None


def test_a_plan_that_is_given_up_counts_as_decide() -> None:
    """When the chain is asked again, the clock of ``decide`` goes on since the incident was opened."""
    driver = running(nodes=2)
    driver.fail("node1", exitcode=-9)
    reader, before = reader_of(driver.events), len(driver.events)
    driver.now += 3 * SECOND
    driver.stop()
    phases = []
    for event in driver.events[before:]:
        reader.feed(event)
        incident = reader.view(event.time).open_incident
        assert incident is not None and sum(phase.running for phase in incident.phase_clocks) == 1
        phases.append([phase.name for phase in incident.phase_clocks if phase.name != "detect"])
        if incident.phase_clocks[-1].name == "decide":
            assert incident.phase_clocks[-1].seconds == incident.seconds > 3
    assert ["decide"] in phases and phases[0] == ["decide", "stop"]


def test_a_view_from_a_snapshot_invents_nothing() -> None:
    """A reader that begins in the middle of an incident leaves out the phases that it has not seen."""
    driver = running(nodes=2)
    driver.fail("node1", exitcode=-9)
    state = fold_log(driver.events)
    incident = LiveReader("demo", state).view(driver.events[-1].time + SECOND).open_incident
    assert incident is not None and incident.seconds == 1.0
    assert [(phase.name, phase.seconds, phase.running) for phase in incident.phase_clocks] == [("stop", None, True)]


def test_nodes_are_grouped_worst_first() -> None:
    """300 nodes are a few lines; a node whose place is empty is first, one that was replaced is last."""
    driver = running(nodes=300)
    reader = reader_of(driver.events)
    nodes = reader.state.membership.nodes
    assert len(reader.view(driver.events[-1].time).groups) == 1
    beats = [Beat(node=name, step=70, own_s=1.0, step_s=1.0) for name in nodes]
    beats[150] = attrs.evolve(beats[150], heard_s=30.0)
    beats[160] = attrs.evolve(beats[160], step=60)
    beats[170] = attrs.evolve(beats[170], own_s=3.0)
    beats[180] = attrs.evolve(beats[180], own_s=1.05, slow="rank 181: data")
    view = reader.view(driver.events[-1].time, Links(beats=beats, beats_at=1), nodes=4)
    assert [(node.node, node.note) for node in view.nodes] == [
        ("node150", "silent"),
        ("node160", "10 behind"),
        ("node170", "slow"),
        ("node180", "slow rank 181: data"),
    ]
    assert view.nodes_left_out == 296
    assert view.groups[0].names.startswith("node150, node160, node170, node180")
    assert len(json.dumps(view.to_json())) < 20_000


def test_a_lost_node_is_first_until_it_is_replaced() -> None:
    """An empty place is something to see; a node that another one replaced is not."""
    driver = running("- shrink\n- stop\n", spec=JobSpec(argv=("train.py",), nodes_min=2, nodes_max=3), nodes=3)
    driver.lose("node1")
    driver.settle()
    view = shown(driver)
    assert [group.state for group in view.groups] == ["lost", "running"]
    assert (view.nodes[0].node, view.nodes[0].note, view.nodes[0].rank_range) == ("node1", "its place is empty", "")


def test_what_a_worker_wrote_is_bounded() -> None:
    """A message of ten megabytes is cut; the view stays small."""
    driver = running(nodes=2)
    driver.fail("node1", message="RuntimeError: " + "<b>" * 3_000_000)
    view = shown(driver)
    assert view.open_incident is not None and len(view.open_incident.summary) <= TEXT_MAX
    assert len(json.dumps(view.to_json())) < 20_000


def test_notices() -> None:
    """What is wrong beside the log, and since when."""
    driver = running(nodes=2)
    at = driver.events[-1].time
    links = Links(log_away=at, log_error="no answer", master_away=at, behind=7, waiting=3, wait_s=4.0)
    view = shown(driver, 12, links)
    assert [notice.name for notice in view.notices] == ["log store", "master", "behind", "waiting"]
    assert view.notices[0].text.endswith("UTC (12.0 s); what follows is older; trying again: no answer")
    driver.finish()
    driver.settle()
    ended = shown(driver, 12, Links(master_away=at))
    assert (ended.state, ended.ended, ended.notices) == ("succeeded", True, ())
    assert ended.newest_events[-1].text.startswith("the job has ended: succeeded, exit code 0")


def test_step_and_rate_come_from_heartbeats() -> None:
    """The newest step that all have completed; its rate measured by agents, else between two looks at the master."""
    driver = running(nodes=2)
    reader, at = reader_of(driver.events), driver.events[-1].time

    def look(step: int, second: int, **more: Any) -> str:
        beats = [Beat(node=f"node{n}", step=step + n, **more) for n in range(2)]
        return row(reader.view(at + second * SECOND, Links(beats=beats, beats_at=at + second * SECOND)), "step")

    assert look(100, 1) == "100 (0 s ago)"
    assert look(104, 3) == "104 (0 s ago), 500 ms per step"
    assert look(104, 5) == "104 (2 s ago), 500 ms per step"
    assert look(110, 7, step_s=0.25, loss=2.5) == "110 (0 s ago), 250 ms per step, loss 2.5"
    assert row(reader.view(at + 9 * SECOND, Links()), "step").startswith("110 (2 s ago)")


def test_the_job_that_is_awaited() -> None:
    """A view for a job that does not exist yet."""
    view = awaited_view("demo", "no job 'demo'", SECOND)
    assert (view.state, view.groups, row(view, "job")) == ("waiting", (), "no job 'demo'")


def test_moments() -> None:
    """Another day is shown, today is not."""
    day = 86400 * SECOND
    assert moment_text(3 * SECOND, 5 * SECOND) == "00:00:03"
    assert moment_text(3 * SECOND, day + 5 * SECOND) == "01-01 00:00"
