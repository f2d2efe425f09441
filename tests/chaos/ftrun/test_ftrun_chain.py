"""MindIO's chain on real processes: UCE -> ARF -> TTP and TRE -> ARF.

Each remedy fails in turn, and the next one is taken; the weights are those of an undisturbed run.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Ftrun, Run, ftrun
from in_place_runs import DAMAGED, KILLED, TWO_NODES, ends, pids, remedies, start, undisturbed_weights

CHAIN = """
version: 1
preset: mindio
job: {replicas: all}
options:
  recompute_step: {global_norm_spike_threshold: 5.0}
"""


SWITCHED = """
version: 1
job: {replicas: all}
chain: [process_restart, stop]
"""
"""A file without these policies, for ``FTCORE_POLICIES``."""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The weights of a run to which nothing happens. Random numbers of a rank are lost with its node: none is drawn."""
    return undisturbed_weights(tmp_path_factory.mktemp("undisturbed"), "drawless")


def chained(job: Ftrun, faults: dict[int, dict[str, Any]]) -> Run:
    """Run with MindIO's chain to its end."""
    job.drop("policy.yaml", SWITCHED if "FTCORE_POLICIES" in job.env else CHAIN)
    flags = (*TWO_NODES, "--policy", "policy.yaml", "--checkpoints", "saved")
    run = start(job, *flags, mode=("built", "drawless"), faults=faults)
    assert run.end() == 0
    return run


def taken(job: Ftrun) -> list[str]:
    """The policies that were taken, in order, each once: the other rank may report its failed collective first."""
    takes = [event.data.policy for event in job.of("policy.considered") if event.data.verdict == "take"]
    return list(dict.fromkeys(takes))


def test_memory_that_is_damaged_again_and_again_is_left_to_a_swap(job: Ftrun, undisturbed: set[str]) -> None:
    """UCE -> ARF: the node is replaced, the other rank stays."""
    run = chained(job, {1: {"forward 12": [DAMAGED] * 2}})
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert taken(job) == ["step_retry", "hot_swap"]
    assert pids(job, 1)[0] == ends(run)[0][0]
    assert {event.data.steps_lost for event in job.of("incident.resolved")} == {0}


def test_a_death_while_a_step_is_computed_again_is_left_to_a_swap(job: Ftrun, undisturbed: set[str]) -> None:
    """TRE -> ARF."""
    job.drop("norm.12", "x")
    run = chained(job, {1: {"round 2": KILLED}})
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert taken(job)[0] == "recompute_step"
    assert remedies(job)[-1] in ("hot_swap", "step_retry"), "also a retry that had begun starts what is missing"
    assert pids(job, 1)[1] != ends(run)[1][0]
    assert pids(job, 1)[0] == ends(run)[0][0]


@pytest.mark.parametrize(
    ("place", "switches"), [("round 1", "{UCE:1,HCCE:1,ARF:1}"), ("begun 1", "")], ids=["switches-round", "file-begun"]
)
def test_a_swap_that_fails_is_left_to_a_dying_checkpoint(
    job: Ftrun, undisturbed: set[str], place: str, switches: str
) -> None:
    """UCE -> ARF -> TTP: the newcomer dies, also before its node has a keeper. The live rank saves the last complete
    step, before all processes are started again. The same if the chain comes from switches, which imply TTP.

    It dies twice: if its peer's report comes first, a retry starts it once more, from one step before.
    """
    if switches:
        job.env["FTCORE_POLICIES"] = switches
    run = chained(job, {1: {"forward 12": [DAMAGED] * 2, place: ["pass", *[KILLED] * 2]}})
    assert {digest for _, digest in ends(run).values()} == undisturbed
    assert taken(job) == ["step_retry", "hot_swap", "dying_checkpoint", "process_restart"]
    assert job.of("checkpoint.committed")[0].data.step in (10, 11)
    assert pids(job, 1)[0] != ends(run)[0][0]
