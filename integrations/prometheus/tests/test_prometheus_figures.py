"""The figures of a log: against other evaluations of the same log, and against the simulator's own accounts."""

import asyncio
import io
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import ftcore_prometheus
import pytest
from ftcore_prometheus.catalogue import CATALOGUE, JOB_LABEL
from ftcore_prometheus.families import JOB_PHASES, NODE_PHASES, JobMetrics
from ftcore_prometheus.figures import JobFigures
from ftcore_prometheus.formats import OPENMETRICS, PROMETHEUS
from ftcore_prometheus.histogram import Durations
from ftcore_prometheus.ledger import USES
from ftcore_prometheus.live import LogView, StepPaces, rank_groups
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

from ftcore import Event, ExportFormat, ObservedMaster, ObservedNode
from ftcore.logs.archive import read_events
from ftcore.replay import Explainer
from ftcore.sim.campaign.simulate import CampaignRequest, simulate
from ftcore.states.job import JobPhase
from ftcore.states.node import GONE, NodePhase

LOGS = sorted((Path(__file__).parents[3] / "tests/golden/logs").rglob("*.ftlog"))
README = Path(__file__).parents[1] / "README.md"


def figures_of(path: Path) -> JobFigures:
    figures = JobFigures()
    for event in read_events(path):
        figures.feed(event)
    return figures


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_incidents_are_those_of_the_explainer(path: Path) -> None:
    """Counts and phases agree with an evaluation of the whole log; nothing decreases; all time is accounted for."""
    figures, explainer = JobFigures(), Explainer()
    booked, last = 0.0, 0
    for event in read_events(path):
        before = dict(figures.ledger.seconds)
        figures.feed(event)
        explainer.feed(event)
        assert all(figures.ledger.seconds[use] >= before[use] for use in USES)
        booked += (event.time - last) / 1e9 if last and figures.state.run and figures.state.ending is None else 0.0
        last = event.time
    ended = [incident for incident in explainer.incidents() if incident.closed is not None]
    assert figures.incidents.total() == len(ended)
    totals = [each.phases.total for each in ended if each.kind == "fault" and each.phases.total is not None]
    assert figures.recovery["total"].count == len(totals)
    assert figures.recovery["total"].sum == pytest.approx(sum(totals))
    assert figures.steps_lost == sum(incident.steps_lost or 0 for incident in ended)
    assert sum(figures.ledger.seconds.values()) == pytest.approx(booked, abs=0.05)


def test_restarts_by_cause() -> None:
    """Each world after an incident counts for the class of that incident."""
    [path] = [path for path in LOGS if path.stem == "kill_raise_segfault_lose"]
    assert figures_of(path).restarts == {"signal-preemption": 1, "user-code": 2, "node-lost": 1}


@pytest.mark.parametrize(("nodes", "rate"), [(64, 0.02), (1, 0.5)])
def test_time_is_what_the_simulator_booked(nodes: int, rate: float) -> None:
    """A campaign knows what it spent time on; the fold of its events finds the same."""
    figures = JobFigures()

    def take(group: Sequence[Event]) -> None:
        for event in group:
            figures.feed(event)

    outcome = simulate(CampaignRequest(nodes=nodes, days=30, seed=3, rate=rate), take, verified_max=0)
    assert outcome.faults > 5 and outcome.ledger["recompute"] > 0
    ledger = figures.ledger
    total, booked = sum(outcome.ledger.values()), sum(ledger.seconds.values())
    assert ledger.seconds["recompute"] / booked == pytest.approx(outcome.ledger["recompute"] / total, abs=0.001)
    lost = sum(outcome.ledger[cause] for cause in ("detect", "decide", "stop", "rendezvous", "start", "load"))
    assert ledger.seconds["recovery"] / booked == pytest.approx(lost / total, abs=0.001)
    trained = outcome.ledger["productive"] + outcome.ledger["checkpoint"]
    assert ledger.goodput == pytest.approx(trained / total, abs=0.001)


def test_a_histogram_counts_cumulatively() -> None:
    found = Durations((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        found.add(seconds)
    assert found.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert (found.count, found.sum) == (4, 12.0)


def seen(
    node: str, round_: int = 1, step: int | None = 7, step_s: float | None = None, own_s: float | None = None
) -> ObservedNode:
    return ObservedNode(
        node=node, heard_s=0.2, round=round_, step=step, absolute=True, loss=None, step_s=step_s, own_s=own_s, phase=""
    )


def world(nodes: int) -> JobFigures:
    """A job with that many nodes in its world."""
    figures = JobFigures()

    def take(group: Sequence[Event]) -> None:
        for event in group:
            figures.feed(event)

    simulate(CampaignRequest(nodes=nodes, days=0.05, seed=1, rate=0.0), take, verified_max=0)
    return figures


def test_series_do_not_grow_with_the_nodes() -> None:
    """More nodes than groups: neighbours share a group, whose figures are those of its worst node."""
    state = world(300).state
    assert state.rounds.world is not None
    members = state.rounds.world.members
    nodes = tuple(
        seen(member.node, state.rounds.world.round, step=at, step_s=1.0, own_s=float(at))
        for at, member in enumerate(members)
    )
    groups = rank_groups(state, ObservedMaster(nodes=nodes, waiting=0, wait_s=0.0), 128)
    assert len(groups) == 100
    first, slots = groups[0], members[0].slots
    assert (first.ranks, first.nodes) == (f"0-{3 * slots - 1}", f"{members[0].node}..{members[2].node}")
    assert (first.step, first.own_s) == (0, 2.0)
    alone = rank_groups(state, ObservedMaster(nodes=nodes, waiting=0, wait_s=0.0), 300)
    assert [group.nodes for group in alone] == [member.node for member in members]


def test_nodes_of_another_round_have_no_step_time() -> None:
    """A node that has not reached the newest round is heard, and its old figures are not shown."""
    state = world(2).state
    assert state.rounds.world is not None
    names = [member.node for member in state.rounds.world.members]
    master = ObservedMaster(
        nodes=(seen(names[0], state.rounds.world.round, step_s=1.0), seen(names[1], 99, step_s=5.0)),
        waiting=0,
        wait_s=0.0,
    )
    found = rank_groups(state, master, 128)
    assert [(group.step_s, group.silent_s) for group in found] == [(1.0, 0.2), (None, 0.2)]


def test_step_times_from_steps() -> None:
    """Without a measurement of the agent, the time between two looks divided by the steps; a new round begins anew."""
    paces = StepPaces()

    def look(now_s: float, **changes: int) -> float | None:
        master = ObservedMaster(nodes=(seen("a", **changes),), waiting=0, wait_s=0.0)
        return paces.filled(master, now_s).nodes[0].step_s

    assert look(0.0, step=10) is None
    assert look(4.0, step=12) == 2.0
    assert look(9.0, step=12) == 2.0, "no step since: the last known time"
    assert look(14.0, step=14) == 5.0
    assert look(15.0, step=1, round_=2) is None


def test_every_metric_is_in_the_catalogue_and_in_the_readme() -> None:
    """Every metric has a description, and README's table is the catalogue."""
    figures = figures_of(LOGS[0])
    master = ObservedMaster(nodes=(seen("a"),), waiting=2, wait_s=1.5)
    log = LogView(read=5, end=9, readable=True)
    families = list(JobMetrics("demo", figures, master=master, log=log).collect())
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        described = CATALOGUE[name]
        assert family.type == described.kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == {JOB_LABEL, *described.labels}
    values = {sample.name: sample.value for family in families for sample in family.samples}
    assert (values["ftcore_log_behind_events"], values["ftcore_log_wait_seconds"]) == (4.0, 1.5)
    rows = re.findall(r"^\| `(ftcore_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", README.read_text(), re.MULTILINE)
    assert rows == [
        (name, each.kind, ", ".join(f"`{label}`" for label in each.labels), each.text)
        for name, each in CATALOGUE.items()
    ]


def test_phases_are_those_of_the_core() -> None:
    """A phase that the core adds appears among the metrics."""
    assert set(JOB_PHASES) == {str(phase) for phase in JobPhase}
    assert set(NODE_PHASES) == {str(phase) for phase in NodePhase} - {str(phase) for phase in GONE}


@pytest.mark.parametrize(("form", "is_open"), [(PROMETHEUS, False), (OPENMETRICS, True)])
def test_a_log_is_exported_as_metrics(form: ExportFormat, is_open: bool) -> None:
    """In both formats, with the figures of the endpoint; the file begins as the format says."""
    path = next(path for path in LOGS if path.stem == "etcd_two_nodes")
    output = io.BytesIO()

    async def events() -> AsyncIterator[Event]:
        for event in read_events(path):
            yield event

    asyncio.run(form.write("demo", events(), output))
    text = output.getvalue().decode()
    assert output.getvalue().startswith(form.begins) and text.endswith("# EOF\n") is is_open
    families = openmetrics.text_string_to_metric_families if is_open else parser.text_string_to_metric_families
    samples = [sample for family in families(text) for sample in family.samples]
    restarts = {each.labels["cause"]: each.value for each in samples if each.name == "ftcore_restarts_total"}
    assert restarts == figures_of(path).restarts


def test_rules_and_panels_name_metrics_that_exist() -> None:
    """An alert on a misspelt metric never fires, and Prometheus does not object."""
    folder = Path(ftcore_prometheus.__file__).parent / "files"
    files = [folder / name for name in ("ftcore-alerts.yml", "ftcore-dashboard.json")]
    known = {*CATALOGUE, *(f"{name}{end}" for name in CATALOGUE for end in ("_bucket", "_sum", "_count"))}
    for file in files:
        assert set(re.findall(r"\bftcore_[a-z_]+", file.read_text())) <= known
