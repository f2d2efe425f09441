"""Campaign and protocol simulator: the engine makes the same decisions for the same trace of faults."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentEscalated, IncidentOpened, IncidentResolved
from ftcore.events.job import JobFinished, JobSpec
from ftcore.events.policy import PolicyConsidered
from ftcore.events.world import RoundPlanned, WorldFormed
from ftcore.policies.file.config import default_chain
from ftcore.sim.campaign.campaign import Campaign
from ftcore.sim.campaign.machines import CampaignConfig
from ftcore.sim.cost import Costs
from ftcore.sim.protocol.options import draw
from ftcore.sim.protocol.simulation import Simulation
from ftcore.sim.trace import TraceFault

SPEC = JobSpec(argv=("train.py",), nodes_min=3, nodes_max=4)
REPLACES = {"platform": ("replace",)}


def fault(minute: float, node: int, kind: str) -> TraceFault:
    return TraceFault(time_s=60 * minute, node=node, kind=kind)


def decisions(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """The decisions, without times, incarnations and other figures that differ."""
    found: list[tuple[Any, ...]] = []
    for event in events:
        data = event.data
        if isinstance(data, IncidentOpened):
            found.append(("opened", data.kind, data.fault.cls, data.fault.detail))
        elif isinstance(data, PolicyConsidered):
            found.append((data.policy, data.verdict, data.plan, data.attempt, data.wait_s))
        elif isinstance(data, RoundPlanned):
            found.append(("round", data.round, data.want, data.wait_s))
        elif isinstance(data, WorldFormed):
            found.append(("world", data.round, data.nodes, data.size))
        elif isinstance(data, IncidentResolved | IncidentEscalated):
            found.append((event.type, data.policy))
        elif isinstance(data, JobFinished):
            found.append((data.outcome, data.exit_code))
    return found


def by_campaign(trace: Sequence[TraceFault], abilities: dict[str, tuple[str, ...]]) -> list[tuple[Any, ...]]:
    groups: list[list[Event]] = []
    costs = Costs().changed(
        {"step": 2.0, "replace": 3.0, "load": 0.0, "start": 1.0, "warm_up": 0.0, "resubmit": 1e6}, "given"
    )
    setting = CampaignConfig(
        spec=SPEC,
        policy=default_chain(),
        days=trace[-1].time_s / 86400 + 0.1,
        costs=costs,
        slots=2,
        abilities=abilities,
    )
    Campaign(setting, trace, groups.append).run()
    return decisions([event for group in groups for event in group])


def by_protocol(trace: Sequence[TraceFault], abilities: dict[str, tuple[str, ...]]) -> list[tuple[Any, ...]]:
    options = attrs.evolve(
        draw(0),
        spec=SPEC,
        policy=default_chain(),
        slots=2,
        faults=(),
        safety_s=trace[-1].time_s + 120,
        twice=0.3,
        ambiguous=0.0,
        spares=4,
        standing_by=0,
        switches=0,
        watched="",
        counted=False,
        layout="",
        abilities=tuple(abilities.items()),
        step_s=2.0,
        total=1_000_000,
        give_up_s=1e6,
    )
    sim = Simulation(options)
    sim.injector.follow(trace)
    sim.run()
    return decisions(sim.store.events)


PROCESSES = (fault(5, 1, "killed"), fault(10, 2, "crash"), fault(15, 0, "software"), fault(20, 3, "crash"))
HOSTS = (fault(5, 1, "host"), fault(10, 2, "killed"), fault(15, 3, "host"))
DEVICES = (fault(5, 2, "gpu"), fault(10, 1, "nvlink"))


@pytest.mark.parametrize(
    ("trace", "abilities"),
    [(PROCESSES, {}), (PROCESSES, REPLACES), (HOSTS, {}), (HOSTS, REPLACES), (DEVICES, REPLACES)],
    ids=["processes", "processes-replaced", "hosts", "hosts-replaced", "devices-replaced"],
)
def test_both_decide_the_same(trace: tuple[TraceFault, ...], abilities: dict[str, tuple[str, ...]]) -> None:
    """Incidents, verdicts, attempts, rounds and worlds are equal, one after the other."""
    expected = by_campaign(trace, abilities)
    assert len([entry for entry in expected if entry[0] == "opened"]) == len(trace)
    assert by_protocol(trace, abilities) == expected
