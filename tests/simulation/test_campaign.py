"""The campaign simulator: consistent, reproducible, and in agreement with published results."""

import statistics
from collections import Counter

import attrs
import pytest
from reproduced import assert_reproduced

from ftcore.events.envelope import Event
from ftcore.policies.file.config import default_chain, parse
from ftcore.replay.spans import USES
from ftcore.replay.verification import verify
from ftcore.sim.campaign.simulate import CampaignRequest, CampaignResult, expected_ettr, faults_of, interval95, simulate
from ftcore.sim.cost import Costs
from ftcore.sim.profiles import PROFILES, profile
from ftcore.sim.trace import Trace, TraceFault
from ftcore.sim.whatif.compare import WhatIf
from ftcore.states.model import digest

DAY = 86400.0

STOP = "version: 1\nchain:\n  - stop\n"
ELASTIC = """
version: 1
chain:
  - process_restart:
      same_fault: 3
  - pod_replacement:
      patience: 12h
      max_replacements: 1000
      per_node: 100
  - stop
"""
REPLACE = """
version: 1
chain:
  - process_restart
  - pod_replacement:
      patience: 2h
  - stop
"""
SAVE = REPLACE.replace("chain:\n", "job:\n  replicas: all\n  abilities: [save, park]\nchain:\n  - dying_checkpoint\n")
SWAP = REPLACE.replace(
    "chain:\n", "job:\n  replicas: all\n  abilities: [save, park]\nchain:\n  - hot_swap:\n      patience: 2h\n"
)


ABLE = ("save", "park")
"""Abilities of the script for these chains that no release can carry out yet."""


def one_rate(
    seed: int, *, nodes: int, days: float, rate: float, restart: float, interval: float, cost: float
) -> CampaignResult:
    """A campaign under the assumptions of the closed form."""
    costs = Costs().with_restart(restart).changed({"ckpt_interval": interval, "ckpt_cost": cost}, "given")
    return simulate(CampaignRequest(nodes=nodes, days=days, seed=seed, rate=rate, costs=costs), verified_max=2000)


def small(name: str, **fields: object) -> CampaignRequest:
    """A profile's faults on a small job of one worker a node."""
    known = attrs.evolve(profile(name), slots=1)
    costs = Costs().changed(known.costs, name)
    return CampaignRequest(**{"nodes": 32, "days": 60.0, "seed": 3, "profile": known, "costs": costs, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "rate", "restart", "interval", "cost"),
    [
        pytest.param(8, 0.25, 300.0, 1800.0, 20.0, marks=pytest.mark.long),
        (16, 0.05, 600.0, 3600.0, 60.0),
        pytest.param(4, 0.5, 120.0, 1200.0, 10.0, marks=pytest.mark.long),
    ],
)
def test_agrees_with_the_closed_form(nodes: int, rate: float, restart: float, interval: float, cost: float) -> None:
    """E[ETTR] of the closed form lies within 1 % of the mean of 20 seeds, and within its 95 % confidence interval."""
    expected = expected_ettr(nodes=nodes, rate=rate, restart_s=restart, ckpt_interval_s=interval, ckpt_cost_s=cost)
    outcomes = [
        one_rate(seed, nodes=nodes, days=100, rate=rate, restart=restart, interval=interval, cost=cost)
        for seed in range(20)
    ]
    goodputs = [outcome.goodput for outcome in outcomes]
    low, high = interval95(goodputs)
    assert statistics.mean(goodputs) == pytest.approx(expected, rel=0.01)
    assert low <= expected <= high
    assert all(not outcome.tally.violations() for outcome in outcomes)


@pytest.mark.parametrize("restart", [0.0, 30.0, 300.0, 1800.0, 7200.0])
def test_a_restart_takes_as_long_as_it_was_given(restart: float) -> None:
    """A restart given as one figure takes exactly that time from the fault until training resumes, in one attempt."""
    trace = Trace(source="trace", faults=(TraceFault(time_s=40_000.0, node=1, kind="killed"),), nodes=4)
    outcome = simulate(CampaignRequest(nodes=4, days=1, trace=trace, costs=Costs().with_restart(restart)))
    away = sum(outcome.ledger[cause] for cause in ("detect", "decide", "stop", "rendezvous", "start", "load", "idle"))
    assert away == pytest.approx(4 * restart, abs=1e-3)
    assert outcome.tally.policies["process_restart"].taken == 1


def test_the_interval_is_students() -> None:
    """The confidence interval uses Student's quantiles, as the tables have them."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    half = 2.776 * statistics.stdev(values) / 5**0.5
    low, high = interval95(values)
    assert (high - low) / 2 == pytest.approx(half, rel=0.005)
    assert interval95([1.0, 3.0])[1] - 2 == pytest.approx(12.706, rel=0.001)


@pytest.mark.longer
@pytest.mark.timeout(600)
def test_agrees_with_ants_figures(longer: bool) -> None:
    """With one set of assumptions and two chains, Ant's four figures come out within 10 % (8 seeds of 180 days; one
    seed is within 15 %).
    """
    seeds, within = (8, 0.1) if longer else (1, 0.15)
    found = {}
    for name, text in (("before", STOP), ("after", ELASTIC)):
        runs = [
            simulate(small("ant", nodes=125, days=180.0, seed=seed, policy=parse(text, name)), verified_max=2000)
            for seed in range(seeds)
        ]
        assert all(not run.tally.violations() for run in runs)
        total = 125 * 180 * DAY
        found[name] = (
            statistics.mean(1 - run.ledger["idle"] / total for run in runs),
            statistics.mean(run.goodput for run in runs),
        )
    assert found["before"] == pytest.approx((0.608, 0.329), rel=within)
    assert found["after"] == pytest.approx((0.836, 0.589), rel=within)


def test_ants_rate_is_93_percent_a_day() -> None:
    """The profile's rate gives a 1,000-device job a fault on 93 % of its days."""
    faults = faults_of(CampaignRequest(nodes=125, days=3000, seed=1, profile=profile("ant")))
    days = set()
    for fault in faults:
        if fault.time_s > 3000 * DAY:
            break
        days.add(int(fault.time_s // DAY))
    assert len(days) / 3000 == pytest.approx(0.93, abs=0.02)


def test_a_profiles_mix_comes_out() -> None:
    """Faults have the profile's shares, and its share of faults stays."""
    known = profile("llama3")
    drawn = []
    for fault in faults_of(CampaignRequest(nodes=2048, days=54, seed=5, profile=known)):
        drawn.append(fault)
        if len(drawn) == 20_000:
            break
    total = sum(part.count for part in known.mix)
    shares = Counter(fault.kind for fault in drawn)
    for kind in ("nvlink", "host", "software"):
        wanted = sum(part.count for part in known.mix if part.kind == kind) / total
        assert shares[kind] / 20_000 == pytest.approx(wanted, abs=0.01)
    hosts = sum(shares[kind] for kind in ("host", "maintenance"))
    assert (hosts + sum(fault.stays for fault in drawn)) / 20_000 == pytest.approx(known.another_node, abs=0.02)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_node_second_has_one_cause(name: str) -> None:
    """The causes add up to nodes times time, none is negative, and there is no violation."""
    outcome = simulate(small(name, days=20.0))
    assert set(outcome.ledger) == set(USES)
    assert sum(outcome.ledger.values()) == pytest.approx(32 * 20 * DAY, rel=1e-9)
    assert min(outcome.ledger.values()) >= 0
    assert outcome.tally.violations() == []
    assert outcome.tally.verified == outcome.tally.events


def test_the_same_seed_gives_the_same_log() -> None:
    """Two campaigns of one seed are equal event by event; another seed differs."""
    logs: list[list[Event]] = []
    for seed in (3, 3, 4):
        log: list[Event] = []
        simulate(small("opt175b", days=30.0, seed=seed), log.extend, verified_max=0)
        logs.append(log)
    assert logs[0] == logs[1]
    assert logs[0] != logs[2]


def test_the_log_is_an_ordinary_log() -> None:
    """A campaign's log verifies like any other, to the digest of the state."""
    log: list[Event] = []
    simulate(small("ant", days=20.0), log.extend, verified_max=0)
    report = verify(log)
    assert report.ok
    assert report.complete
    assert report.digest == digest(report.state)
    assert len(assert_reproduced(log)) > 5


def test_another_machine_helps_and_another_process_does_not() -> None:
    """A machine that stays faulty ends a job that can only restart, and costs one replacement otherwise."""
    trace = Trace(source="trace", faults=(TraceFault(time_s=5000, node=2, kind="gpu", stays=True),), nodes=4)
    request = CampaignRequest(nodes=4, days=1, trace=trace)
    only_stop = simulate(attrs.evolve(request, policy=parse(STOP, "stop")))
    replaced = simulate(attrs.evolve(request, policy=parse(REPLACE, "replace")))
    assert only_stop.resubmissions == 1
    assert replaced.resubmissions == 0
    assert replaced.tally.policies["pod_replacement"].resolved == 1
    assert replaced.goodput > only_stop.goodput


def test_what_is_saved_before_is_not_lost() -> None:
    """With a checkpoint saved at the fault, no work is repeated."""
    faults = (TraceFault(time_s=40_000, node=1, kind="killed"),)
    request = CampaignRequest(nodes=4, days=1, trace=Trace(source="trace", faults=faults, nodes=4))
    plain = simulate(attrs.evolve(request, policy=parse(REPLACE, "replace")))
    saved = simulate(attrs.evolve(request, policy=parse(SAVE, "save"), assumed=ABLE))
    assert plain.ledger["recompute"] > 0
    assert saved.ledger["recompute"] == pytest.approx(0, abs=1)
    assert plain.goodput < saved.goodput


@pytest.mark.parametrize("kind", ["uce", "collective"])
def test_a_retry_costs_no_start_of_processes(kind: str) -> None:
    """All ranks wait, load from memory and go on: neither new processes nor their warm-up."""
    faults = tuple(TraceFault(time_s=time, node=1, kind=kind) for time in (20_000, 50_000))
    request = CampaignRequest(nodes=4, days=1, trace=Trace(source="trace", faults=faults, nodes=4))
    restarted, retried = (simulate(attrs.evolve(request, assumed=assumed)) for assumed in ((), ("retry",)))
    assert sum(tally.resolved for tally in restarted.tally.policies.values()) == 2
    assert {name: tally.resolved for name, tally in retried.tally.policies.items()} == {"step_retry": 2}
    costs = Costs()
    saved = costs["start"] - costs["start_parked"] + costs["warm_up"] + costs["load"] - costs["load_memory"]
    assert retried.goodput - restarted.goodput > 2 * saved / DAY


def test_a_fleet_comes_and_goes_by_its_trace() -> None:
    """A fleet trains only after its first nodes have joined, and continues with fewer nodes after a preemption."""
    faults = [TraceFault(time_s=3600.0, node=place, kind="@join") for place in range(4)]
    faults.append(TraceFault(time_s=36_000.0, node=0, kind="preempted"))
    trace = Trace(source="trace", faults=tuple(faults), nodes=4, fleet=True)
    chain = parse("version: 1\nchain:\n  - process_restart\n  - shrink\n  - grow\n  - stop\n", "spot")
    outcome = simulate(CampaignRequest(nodes=4, days=1, trace=trace, policy=chain))
    total = 4 * DAY
    assert outcome.ledger["idle"] > 4 * 3600
    assert outcome.goodput == pytest.approx((4 * 9 + 3 * 14) * 3600 / total, rel=0.05)


@pytest.mark.parametrize(("recorded", "other"), [(REPLACE, SWAP), (REPLACE, SAVE), (SWAP, REPLACE), (SAVE, STOP)])
def test_whatif_predicts_the_other_policys_own_run(recorded: str, other: str) -> None:
    """The loss of B estimated from A's log is within 10 % of B's loss in its own run (200 days, one seed)."""
    logs: dict[str, list[Event]] = {recorded: [], other: []}
    known = profile("opt175b")
    costs = Costs().changed(known.costs, known.name)
    for text, log in logs.items():
        simulate(small("opt175b", days=200.0, policy=parse(text, "file"), assumed=ABLE), log.extend, verified_max=0)

    def lost(log: list[Event], chain: str) -> tuple[float, float]:
        reader = WhatIf(parse(chain, "file"), costs, (known.device_share, known.name), ABLE)
        for event in log:
            reader.feed(event)
        compared = reader.compared()
        return sum(one.recorded.total for one in compared), sum(one.other.total for one in compared)

    own, again = lost(logs[other], other)
    _, predicted = lost(logs[recorded], other)
    assert again == pytest.approx(own, rel=0.01)
    assert predicted == pytest.approx(own, rel=0.1)
    assert own != pytest.approx(lost(logs[recorded], recorded)[0], rel=0.1)


def test_the_default_chain_is_simulated_without_a_file() -> None:
    """Only nodes, days and the source of faults are required."""
    outcome = simulate(CampaignRequest(nodes=2, days=1, rate=0.0))
    assert outcome.request.policy == default_chain()
    assert outcome.faults == 0
    assert outcome.goodput == pytest.approx(1800 / 1840, abs=0.01)
