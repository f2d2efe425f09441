"""What policies see of a job, where no policy's own test shows it."""

import pytest
from policy_cases import incident, running

from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.policies.builtin.hot_swap import HotSwapOptions
from ftcore.policies.situation import keeps_failing, unfit
from ftcore.wording import format_duration

FOLLOWS_THE_JOB = [cls for cls in FaultClass if CLASSES[cls].at_fault in ("data", "user", "none")]


@pytest.mark.parametrize("cls", FOLLOWS_THE_JOB)
def test_what_the_data_or_the_script_did_counts_for_no_node(cls):
    """A fault that follows the job to any node makes no node unfit, however often it occurs."""
    job = running().state
    for _ in range(5):
        about = incident(job, cls)
    assert not keeps_failing(about, job, 3, 3600.0)
    assert unfit(about, job, HotSwapOptions(classes=(), node_faults=3, window=3600.0)) == ()


@pytest.mark.parametrize("cls", [FaultClass.OOM_HOST, FaultClass.UNKNOWN, FaultClass.HANG])
def test_what_a_process_did_counts_for_its_node(cls):
    """Faults that recur on one node and on no other make it unfit."""
    job = running().state
    for _ in range(3):
        about = incident(job, cls)
    assert keeps_failing(about, job, 3, 3600.0)
    assert unfit(about, job, HotSwapOptions(classes=(), node_faults=3, window=3600.0)) == ("node1",)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0, "0s"),
        (0.5, "0.5s"),
        (90, "90s"),
        (300.0, "5m"),
        (3600, "1h"),
        (5400, "90m"),
        (86399, "23h 59m"),
        (90000, "25h"),
        (2.592e6, "30d"),
        (31536000, "1 year"),
        (63072000, "2 years"),
        (30000000, "347d 5h"),
    ],
)
def test_durations_have_fitting_units(seconds, told):
    """As a policy file has them."""
    assert format_duration(seconds) == told
