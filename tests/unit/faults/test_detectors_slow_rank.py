"""Slow ranks and slowdowns: what is named, when, and what is not."""

import math
import random
from collections.abc import Sequence

import pytest

from ftcore.faults.detectors import SlowdownDetector, SlowRankDetector
from ftcore.faults.detectors.slow_rank import PERSIST, WINDOW


def own(ranks: int, number: int, slow: dict[int, float] | None = None, sigma: float = 0.005) -> list[float]:
    """A sample: own time per step by rank."""
    source = random.Random(number)
    return [source.gauss(1.0, sigma) * (slow or {}).get(rank, 1.0) for rank in range(ranks)]


def named(detector: SlowRankDetector, samples: Sequence[Sequence[float]], groups: Sequence[Sequence[int]]) -> list[int]:
    """The numbers of the samples after which a rank is named."""
    return [number for number, each in enumerate(samples) if detector.observe(float(number), each, groups)]


@pytest.mark.parametrize("ranks", [2, 3, 8, 512])
def test_a_rank_slower_by_five_percent_is_named(ranks: int) -> None:
    """After 14 samples, which are 140 steps; no other rank is named."""
    detector = SlowRankDetector(ranks)
    found = named(detector, [own(ranks, number, {1: 1.05}) for number in range(30)], [range(ranks)])
    assert PERSIST - 1 <= found[0] < WINDOW
    assert detector.named == (1,)


def test_the_ratio_is_to_the_others_and_the_slowest_comes_first() -> None:
    """Two slow ranks of eight."""
    detector = SlowRankDetector(8)
    found = [detector.observe(float(n), own(8, n, {2: 1.5, 6: 3.0}), [range(8)]) for n in range(WINDOW)][-1]
    assert [slow.rank for slow in found] == [6, 2]
    assert found[0].ratio == pytest.approx(3.0, rel=0.02) and found[0].samples == WINDOW


def test_ranks_that_do_other_work_are_not_compared() -> None:
    """Stage 1 needs twice the time of stage 0; one rank of stage 0 is slow among its own."""
    detector = SlowRankDetector(8)
    second = dict.fromkeys((1, 3, 5, 7), 2.0)
    named(detector, [own(8, number, second) for number in range(30)], [[0, 2, 4, 6], [1, 3, 5, 7]])
    assert detector.named == ()
    named(detector, [own(8, number, second | {4: 1.05}) for number in range(30)], [[0, 2, 4, 6], [1, 3, 5, 7]])
    assert detector.named == (4,)


def test_a_rank_without_peers_is_compared_with_its_own_beginning() -> None:
    """A two-stage pipeline without data parallelism: a stage that becomes slower is named; longer batches are not."""
    stages, detector = [[0], [1]], SlowRankDetector(2)
    calm = [[number * 1.0, number * 2.0] for number in own(1, 1) * 30]
    assert named(detector, calm, stages) == []
    longer = [[1.5 * each for each in sample] for sample in calm]
    assert named(detector, longer, stages) == []
    slower = [[longer[0][0] * 1.06, longer[0][1]]] * 20
    assert named(detector, slower, stages)[0] <= WINDOW
    assert detector.named == (0,)


def test_a_global_slowdown_names_no_rank() -> None:
    """All ranks ten times slower, at once or in one sample of three."""
    detector = SlowRankDetector(8)
    factors = [10.0 if number > 50 or number % 3 == 0 else 1.0 for number in range(100)]
    samples = [[seconds * factor for seconds in own(8, number)] for number, factor in enumerate(factors)]
    assert named(detector, samples, [range(8)]) == []


def test_a_rank_that_is_rarely_slow_is_not_named() -> None:
    """Saves and evaluations on alternating ranks."""
    detector = SlowRankDetector(4)
    assert named(detector, [own(4, number, {number % 4: 3.0}) for number in range(200)], [range(4)]) == []


def test_machines_that_differ_need_a_larger_excess() -> None:
    """If healthy ranks differ by several percent, one that is 5 % over them is one of them."""
    base = [1.0, 1.03, 0.97, 1.05, 0.96, 1.02, 0.98, 1.06]
    samples = [[b * each for b, each in zip(base, own(8, number), strict=True)] for number in range(40)]
    assert named(SlowRankDetector(8), samples, [range(8)]) == []


def test_a_recovered_rank_is_no_longer_slow() -> None:
    """It stays named until fewer than half of the required slow samples remain."""
    detector = SlowRankDetector(4)
    named(detector, [own(4, number, {3: 2.0}) for number in range(30)], [range(4)])
    assert detector.named == (3,)
    named(detector, [own(4, number) for number in range(30, 45)], [range(4)])
    assert detector.named == ()


def test_a_slow_rank_is_named_after_the_least_time() -> None:
    """Short steps fill a window in a second, which is no lasting fault."""
    detector = SlowRankDetector(4, span_s=25.0)
    assert named(detector, [own(4, number, {3: 2.0}) for number in range(40)], [range(4)])[0] == 25


def test_unknown_times_are_no_ratio() -> None:
    """A single known rank has no peers; impossible times are ignored."""
    detector = SlowRankDetector(4)
    for sample in ([1.0, math.nan, 0.0, math.inf], [1.0, -5.0, math.nan, 0.0]):
        assert named(detector, [sample] * 40, [range(4)]) == []


def test_a_slowdown_is_found_with_the_pace_before() -> None:
    """149 to 140 TFLOP/s, 6.4 % more time per step; then each further one, and none for a single slow window."""
    detector = SlowdownDetector()
    assert not [found for _ in range(100) if (found := detector.observe(1.0))]
    assert not [found for value in [1.2] * 20 + [1.0] * 60 if (found := detector.observe(value))]
    (found,) = [found for _ in range(200) if (found := detector.observe(149 / 140))]
    assert (found.before, found.after) == (1.0, pytest.approx(1.0643, abs=1e-3))
    (again,) = [found for _ in range(200) if (found := detector.observe(1.2))]
    assert again.before == pytest.approx(149 / 140)
    assert detector.observe(math.nan) is None and detector.observe(0.0) is None


def test_four_percent_are_no_slowdown_and_a_faster_job_is_the_new_measure() -> None:
    """A job that becomes faster, and then as slow as it began, is reported."""
    detector = SlowdownDetector()
    assert not [found for value in [1.0] * 60 + [1.04] * 200 if (found := detector.observe(value))]
    assert not [found for _ in range(100) if (found := detector.observe(0.8))]
    (found,) = [found for _ in range(100) if (found := detector.observe(1.0))]
    assert found.before == 0.8
