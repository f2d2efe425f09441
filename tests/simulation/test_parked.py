"""Recovery in the same processes, message by message: production agents park, and the next round keeps what lives."""

import attrs

from ftcore.events.incident import IncidentResolved
from ftcore.events.job import JobSpec
from ftcore.events.worker import WorkersStarted
from ftcore.policies.file.config import default_chain
from ftcore.sim.protocol.options import draw
from ftcore.sim.protocol.simulation import Simulation
from ftcore.sim.trace import TraceFault
from ftcore.timing import Timing

SPEC = JobSpec(argv=("train.py",), nodes_min=3, nodes_max=3, timing=Timing())


def simulation(*faults: TraceFault, replaced: bool = False) -> Simulation:
    """Three nodes with two ranks each, which can park."""
    options = attrs.evolve(
        draw(0),
        spec=SPEC,
        policy=default_chain(),
        slots=2,
        faults=(),
        safety_s=200.0,
        twice=0.0,
        ambiguous=0.0,
        spares=2 if replaced else 0,
        standing_by=0,
        switches=0,
        watched="",
        counted=False,
        layout="",
        abilities=(("platform", ("replace",)),) if replaced else (),
        capable=True,
        step_s=2.0,
        total=1_000_000,
        give_up_s=1e6,
    )
    sim = Simulation(options)
    sim.injector.follow(faults)
    sim.run()
    return sim


def started(sim: Simulation, round_: int) -> dict[str, WorkersStarted]:
    """What each node started in a round."""
    found = (event.data for event in sim.store.events if isinstance(event.data, WorkersStarted))
    return {data.node: data for data in found if data.round == round_}


def test_only_the_dead_process_is_replaced() -> None:
    """Its node keeps the other rank; the other nodes keep both. Two swaps, each in a round of its own."""
    sim = simulation(*(TraceFault(time_s=at, node=1, kind="killed", stays=False) for at in (30.0, 80.0)))
    resolved = [event.data for event in sim.store.events if isinstance(event.data, IncidentResolved)]
    assert [data.policy for data in resolved] == ["hot_swap", "hot_swap"]
    for round_ in (2, 3):
        before, after = started(sim, round_ - 1), started(sim, round_)
        kept = {node: set(before[node].pids) & set(after[node].pids) for node in after}
        assert sorted(map(len, kept.values())) == [1, 2, 2]
        assert sorted(data.how for data in after.values()) == ["fork", "parked", "parked"]


def test_a_lost_node_is_swapped_while_the_others_wait() -> None:
    """The platform launches another one; every process of the other nodes is the same."""
    sim = simulation(TraceFault(time_s=30.0, node=1, kind="host", stays=False), replaced=True)
    resolved = [event.data for event in sim.store.events if isinstance(event.data, IncidentResolved)]
    assert [data.policy for data in resolved] == ["hot_swap"]
    before, after = started(sim, 1), started(sim, 2)
    waited = {node for node in after if after[node].how == "parked"}
    assert waited == {"node0", "node2"}
    assert all(before[node].pids == after[node].pids for node in waited)
