"""Hang detection over generated runs: no false alarm over noisy scripts, and each hang is found in time."""

import hang_runs
import pytest

from ftcore.timing import DEFAULT

HOURS = 1.0
SOON_S = {
    "sleeps for ever": DEFAULT.hang_idle_s,
    "waits for a lock": DEFAULT.hang_idle_s,
    "waits for an answer": DEFAULT.hang_busy_s,
    "its data loader is stuck": DEFAULT.hang_idle_s,
    "all data loaders are stuck": DEFAULT.hang_idle_s,
    "in another collective": DEFAULT.hang_idle_s,
    "one collective behind": DEFAULT.hang_idle_s,
    "in a section with a limit of 300 s": 300.0,
}
"""Least time without progress for each hang that needs no learned limit."""

SAMPLES_S = 2 * 6.0 * DEFAULT.hang_look_s
"""Longest time by which samples may be late: two of the longest intervals."""


@pytest.mark.parametrize("seed", range(24))
def test_no_false_alarm_over_noisy_scripts(seed: int) -> None:
    """Compilation, first batches, evaluations, saves, uploads, polls, slow steps, a suspended machine."""
    assert hang_runs.watched(seed, hang_runs.healthy(seed, HOURS)) is None


@pytest.mark.parametrize("name", list(hang_runs.HANGS))
@pytest.mark.parametrize("seed", [1, 2])
def test_each_hang_is_found_and_named(seed: int, name: str) -> None:
    """After the time that its evidence needs, else at the ceiling; the rank that others wait for is named."""
    found = hang_runs.watched(seed, hang_runs.hung(seed, name, 0.3))
    assert found is not None and found.part.hang == name
    if name in SOON_S:
        assert found.after_s <= SOON_S[name] + DEFAULT.hang_look_s + SAMPLES_S
        assert found.ranks == ((0, 1, 2, 3) if name.startswith("all") else (0,))
    elif name != "polls for ever":
        assert found.cause == "limit" and found.after_s < DEFAULT.hang_ceiling_s


def test_a_rank_that_polls_hangs_at_the_declared_ceiling() -> None:
    """The policy file's ceiling does not grow with the gaps that the job survived."""
    found = hang_runs.watched(3, hang_runs.hung(3, "polls for ever", 0.3), ceiling_s=900.0)
    assert found is not None and found.cause == "ceiling"
    assert found.after_s <= 900.0 + DEFAULT.hang_look_s + SAMPLES_S
