"""Time constants of jobs of any size."""

import pytest

from ftcore.timing import BEATS_PER_S, DEFAULT


@pytest.mark.parametrize("nodes", [1, 2, 999, 1000, 1024, 2000, 3200, 4096, 10_000, 100_000])
def test_a_job_of_any_size_has_consistent_constants(nodes: int) -> None:
    """A large job has a longer heartbeat interval, and still detects the loss of a node within five seconds."""
    timing = DEFAULT.for_nodes(nodes)
    timing.check()
    assert timing.node_lease_s <= 5
    assert nodes > 3200 or nodes / timing.heartbeat_s <= BEATS_PER_S
    assert (timing == DEFAULT) == (nodes <= 1000)
    assert timing.sign_s * 2 < timing.patience_s
