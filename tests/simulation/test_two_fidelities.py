"""One trace of faults, simulated message by message and in closed steps: the engine decides the same."""

from collections.abc import Iterable

import attrs
import pytest

from ftcore.engine.turn import own_fact
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentEscalated, IncidentOpened, IncidentResolved
from ftcore.events.job import JobFinished
from ftcore.events.policy import AbilityDeclared, PolicyConsidered
from ftcore.events.world import WorldFormed
from ftcore.policies.config import parse
from ftcore.sim.clock import ns
from ftcore.sim.cost import Costs
from ftcore.sim.evidence import KINDS
from ftcore.sim.hosts import Host
from ftcore.sim.masters import SimMaster
from ftcore.sim.options import draw
from ftcore.sim.protocol import Simulation
from ftcore.sim.simulate import Request, setting_of, simulate
from ftcore.sim.trace import Trace, TraceFault, render
from ftcore.sim.trace import parse as parse_trace

NODES, SLOTS = 4, 8
LAST_S = 400.0

KILLS = [(40.0, 1, "killed"), (90.0, 0, "killed"), (140.0, 3, "crash"), (200.0, 2, "killed")]
HOSTS = [(40.0, 3, "host"), (140.0, 1, "killed"), (220.0, 2, "host")]
SEGFAULTS = [(40.0, 2, "crash"), (100.0, 2, "crash"), (160.0, 2, "killed")]

RESTART = "version: 1\nchain:\n  - process_restart:\n      same_fault: 9\n  - stop\n"
SHORT = "version: 1\nchain:\n  - process_restart:\n      max_restarts: 2\n  - stop\n"
REPLACE = "version: 1\nchain:\n  - process_restart\n  - pod_replacement:\n      patience: 5m\n  - stop\n"
SHRINK = "version: 1\nchain:\n  - process_restart\n  - shrink\n  - stop\n"

COSTS = Costs().changed(
    {"stop": 0.5, "start": 1.0, "load": 0.5, "warm_up": 0.5, "step": 0.5, "replace": 8.0, "check": 0.5}
    | {"detect_crash": 0.05, "platform": 0.1},
    "given",
)


def decisions(log: Iterable[Event]) -> list[tuple[str, ...]]:
    """What was decided, without names, times and whatever only counts messages."""
    found: list[tuple[str, ...]] = []
    for event in log:
        data = event.data
        if type(data) is IncidentOpened:
            found.append(("opened", data.kind, data.fault.cls, data.fault.detail))
        elif type(data) is PolicyConsidered:
            found.append(("asked", data.policy, data.verdict, data.plan))
        elif type(data) is IncidentEscalated:
            found.append(("escalated", data.policy))
        elif type(data) is IncidentResolved:
            found.append(("resolved", data.policy, data.outcome))
        elif type(data) is WorldFormed:
            found.append(("world", str(data.nodes), str(data.size)))
        elif type(data) is JobFinished:
            found.append(("finished", data.outcome))
            break  # a campaign's job is started again by somebody
    return found


class Even:
    """Chance for a platform that is always the same: nothing is declined, everything takes its middle time."""

    def random(self) -> float:
        return 0.99

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def choice(self, among: list[Host]) -> Host:
        return among[0]


def in_closed_steps(request: Request) -> list[tuple[str, ...]]:
    log: list[Event] = []
    simulate(request, log.extend)
    return decisions(log)


def message_by_message(request: Request) -> list[tuple[str, ...]]:
    """The same job, chain and faults, with every frame of every agent."""
    setting = setting_of(request)
    assert request.trace is not None
    options = attrs.evolve(
        draw(1, NODES),
        spec=attrs.evolve(draw(1, NODES).spec, nodes_min=setting.spec.nodes_min, nodes_max=NODES),
        policy=request.policy,
        abilities=tuple(setting.abilities.items()),
        faults=(),
        slots=SLOTS,
        safety_s=LAST_S,
        twice=0.0,
        ambiguous=0.0,
        delay_s=0.0005,
        skew_s=0.0,
        spares=NODES,
        lead_delay_s=0.0,
        capable=False,
        step_s=0.5,
        total=10_000,
        checkpoint_every=5,
        give_up_s=5.0,
    )
    simulation = Simulation(options)
    platform = simulation.platform
    launch_later = platform._launch_later
    replace_s = request.costs["replace"]
    platform.chance, platform._pinned = Even(), True  # type: ignore[assignment]
    platform._launch_later = lambda place, delay_s, host=None: launch_later(place, replace_s)  # type: ignore[method-assign]
    for source, abilities in options.abilities:
        declared = own_fact(AbilityDeclared(source=source, abilities=abilities))
        simulation.clock.after(ns(15.0), lambda fact=declared: _leader(simulation).submit(fact))  # type: ignore[misc]
    for fault in request.trace.faults:
        simulation.clock.after(ns(fault.time_s), lambda fault=fault: _strike(simulation, fault))  # type: ignore[misc]
    simulation.run()
    return decisions(simulation.store.events)


def _leader(simulation: Simulation) -> SimMaster:
    return next(master for master in simulation.living_masters() if master.leading)


def _strike(simulation: Simulation, fault: TraceFault) -> None:
    state = simulation.oracle
    if fault.node not in state.places:
        return
    node = state.nodes[state.places[fault.node]]
    agent = next(agent for agent in simulation.platform.agents() if agent.core.incarnation == node.incarnation)
    if KINDS[fault.kind].node:
        agent.host.up = False
        for process in list(agent.host.processes):
            process.kill()
        simulation.trouble.harm(agent.name)
        return
    ranks = next(ranks for ranks in simulation.training.living() if ranks.process is agent)
    simulation.trouble.harm(f"{fault.kind} of round {ranks.round} on {agent.name}")
    simulation.training.end(ranks, 0, KINDS[fault.kind].exitcode)


@pytest.mark.parametrize(
    ("faults", "chain", "nodes_min"),
    [
        (KILLS, RESTART, NODES),
        (KILLS, SHORT, NODES),
        (SEGFAULTS, RESTART, NODES),
        (HOSTS, REPLACE, NODES),
        (HOSTS, SHRINK, 2),
    ],
    ids=["kills", "budget spent", "same node", "replaced", "shrunk"],
)
def test_both_decide_the_same(faults: list[tuple[float, int, str]], chain: str, nodes_min: int) -> None:
    """Incidents, verdicts, worlds and outcomes are the same in both fidelities, in the same order."""
    made = tuple(TraceFault(time_s=time_s, node=node, kind=kind) for time_s, node, kind in faults)
    trace: Trace = parse_trace(render(made), "trace.tsv")
    request = Request(
        nodes=NODES,
        days=LAST_S / 86400,
        trace=trace,
        policy=parse(chain, "file"),
        costs=COSTS,
        nodes_min=nodes_min,
    )
    decided = in_closed_steps(request)
    assert len([entry for entry in decided if entry[0] == "opened"]) >= 2
    assert message_by_message(request) == decided
