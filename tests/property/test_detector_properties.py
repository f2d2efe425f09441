"""Properties of the detectors for every curve."""

import io
import itertools
import math
import pickle
import statistics
from collections.abc import Sequence
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ftcore.cli.ctl_spikes import read_curve
from ftcore.errors import UsageError
from ftcore.faults.detectors import (
    LossDetector,
    NoProgress,
    NormSpike,
    NormThreshold,
    SlowdownDetector,
    SlowRankDetector,
)
from ftcore.faults.detectors.robust import Window
from ftcore.faults.detectors.slow_rank import LEAST, PERSIST, WINDOW
from ftcore.faults.detectors.spike import ENOUGH

seeds = st.integers(0, 2**32).map(Random)
numbers = st.floats(-1e12, 1e12, allow_subnormal=False)
wild = st.floats(allow_nan=True, allow_infinity=True)
eighths = st.integers(-8000, 8000).map(lambda n: n / 8)
"""Sums and differences of these are exact, so that results can be compared for equality."""


def verdicts(detector: LossDetector | NormSpike, values: Sequence[float]) -> list[tuple[int, str, int]]:
    found = (detector.observe(step, value) for step, value in enumerate(values))
    return [(finding.step, finding.kind, finding.since) for finding in found if finding is not None]


@given(st.lists(numbers, min_size=1, max_size=80), st.integers(1, 50))
def test_window_agrees_with_the_statistics_module(values: list[float], size: int) -> None:
    """Median and MAD are those of the statistics module over the last samples."""
    window = Window(size)
    for count, value in enumerate(values, start=1):
        window.push(value)
        kept = values[max(0, count - size) : count]
        middle = statistics.median(kept)
        scale = max(map(abs, kept)) * 1e-12
        assert math.isclose(window.median(), middle, abs_tol=scale)
        assert math.isclose(window.mad(), statistics.median(abs(v - middle) for v in kept), abs_tol=scale)
        assert len(window) == len(kept)


@given(st.lists(numbers, max_size=120), st.integers(-30, 30))
def test_scale_changes_no_verdict(values: list[float], power: int) -> None:
    """A curve times a positive factor (a power of two, which is exact) has the same results."""
    made = LossDetector(warmup_steps=0), LossDetector(warmup_steps=0)
    assert verdicts(made[0], values) == verdicts(made[1], [value * 2.0**power for value in values])


@given(st.lists(eighths, min_size=ENOUGH, max_size=120), eighths)
def test_shift_changes_no_verdict_without_a_floor(values: list[float], shift: float) -> None:
    """With floor 0 and a window with enough samples, an added constant changes no result."""
    plain, shifted = (LossDetector(warmup_steps=0, floor=0.0, lasting=10**6) for _ in range(2))
    learned = [float(step % 7) for step in range(ENOUGH)]
    for step, value in enumerate([*learned, *values]):
        one, other = plain.observe(step, value), shifted.observe(step, value + shift)
        assert (one is None) == (other is None)
        assert step >= ENOUGH or one is None


@given(numbers, st.integers(1, 300))
def test_a_constant_curve_is_never_reported(value: float, count: int) -> None:
    """For any constant."""
    assert verdicts(LossDetector(warmup_steps=0), [value] * count) == []
    assert verdicts(NormSpike(warmup_steps=0), [value] * count) == []


@given(st.integers(-1000, 1000), st.integers(-(10**6), 10**6))
def test_a_straight_line_is_never_reported(slope: int, start: int) -> None:
    """For any slope, and wherever it crosses zero."""
    assert verdicts(LossDetector(warmup_steps=0, floor=0.0), [float(start + slope * n) for n in range(200)]) == []


@given(st.lists(wild, max_size=150))
def test_a_value_that_is_not_finite_is_always_reported(values: list[float]) -> None:
    """Between any other samples; and no curve raises."""
    loss, norm = LossDetector(), NormThreshold(3.0)
    for step, value in enumerate(values):
        finding, over = loss.observe(step, value), norm.observe(step, value)
        assert (finding is not None and finding.kind == "loss-nan") == (not math.isfinite(value))
        assert (over is not None) == (not value < 3.0)


@given(st.lists(wild, max_size=150), st.integers(0, 150))
def test_chunks_make_no_difference(values: list[float], cut: int) -> None:
    """A detector that was pickled between two samples has the same results."""
    whole, half = LossDetector(warmup_steps=20), LossDetector(warmup_steps=20)
    expected = repr([whole.observe(step, value) for step, value in enumerate(values)])
    found = [half.observe(step, value) for step, value in enumerate(values[:cut])]
    half = pickle.loads(pickle.dumps(half))
    found += [half.observe(step, value) for step, value in enumerate(values[cut:], start=min(cut, len(values)))]
    assert repr(found) == expected


@given(st.lists(st.sampled_from([1.0, 1.1, 9.0, 50.0, math.nan]), min_size=200, max_size=400))
def test_memory_is_bounded(values: list[float]) -> None:
    """No curve makes a detector larger than its window."""
    loss, norm = LossDetector(window=30), NormThreshold(3.0)
    sizes = []
    for step, value in enumerate(values * 3):
        loss.observe(step, value)
        norm.observe(step % 300, value)
        sizes.append(len(pickle.dumps((loss._window, loss._episode))))
    assert max(sizes) < 2000
    assert len(norm._abnormal) <= 300


@given(
    st.lists(st.lists(st.floats(0.01, 100.0), min_size=6, max_size=6), max_size=60),
    st.integers(-10, 10),
    st.sampled_from([[range(6)], [range(4), range(4, 6)], [range(4), [4], [5]], [[rank] for rank in range(6)]]),
)
def test_slow_ranks_scale_and_memory(samples: list[list[float]], power: int, groups: list[Sequence[int]]) -> None:
    """The unit of time changes no result; memory is bounded by ranks and window; state survives pickling."""
    one, other = SlowRankDetector(6), SlowRankDetector(6)
    for number, own in enumerate(samples):
        found = one.observe(float(number), own, groups)
        scaled = other.observe(float(number), [seconds * 2.0**power for seconds in own], groups)
        assert [slow.rank for slow in found] == [slow.rank for slow in scaled]
        assert all(slow.ratio >= 1 + LEAST for slow in found if slow.samples >= PERSIST and number < WINDOW)
        one = pickle.loads(pickle.dumps(one))
    assert len(pickle.dumps(one)) < 8000


@given(st.lists(st.floats(0.1, 100.0), min_size=2, max_size=64), st.floats(0.1, 100.0))
def test_a_factor_for_all_ranks_names_no_rank(factors: list[float], base: float) -> None:
    """Equal ranks of any common speed are never reported."""
    detector = SlowRankDetector(4)
    for number, factor in enumerate(factors):
        assert detector.observe(float(number), [base * factor] * 4, [range(4)]) == []


@given(seeds, st.sampled_from([2, 4, 8, 24]), st.floats(0.0, 0.05))
def test_noise_names_no_rank(source: Random, ranks: int, sigma: float) -> None:
    """Healthy ranks whose samples vary by up to 5 % are not reported, in 600 steps."""
    detector = SlowRankDetector(ranks)
    for number in range(60):
        own = [max(0.5, source.gauss(1.0, sigma)) for _ in range(ranks)]
        assert detector.observe(float(number), own, [range(ranks)]) == []


@given(seeds, st.sampled_from([2, 4, 8, 24]), st.floats(0.0, 0.005))
def test_a_rank_that_is_five_percent_slower_is_named_in_200_steps(source: Random, ranks: int, sigma: float) -> None:
    """20 samples of ten steps; no other rank is named, then or later."""
    detector, slow = SlowRankDetector(ranks), source.randrange(ranks)
    for number in range(40):
        own = [source.gauss(1.05 if rank == slow else 1.0, sigma) for rank in range(ranks)]
        found = detector.observe(float(number), own, [range(ranks)])
        assert {each.rank for each in found} <= {slow}
        assert number + 1 < WINDOW or found


@given(seeds, st.floats(0.0, 0.05))
def test_noise_is_no_slowdown(source: Random, sigma: float) -> None:
    """A job whose steps vary by up to 5 % around one pace is not reported as slower, in 6,000 steps."""
    detector = SlowdownDetector()
    assert not any(detector.observe(max(0.5, source.gauss(1.0, sigma))) for _ in range(600))


@given(seeds, st.floats(0.0, 0.01), st.floats(1.065, 4.0))
def test_a_slowdown_is_found_once(source: Random, sigma: float, factor: float) -> None:
    """149 to 140 TFLOP/s and more is found once, with the paces before and after."""
    detector = SlowdownDetector()
    before = [detector.observe(source.gauss(1.0, sigma)) for _ in range(100)]
    after = [found for _ in range(100) if (found := detector.observe(factor * source.gauss(1.0, sigma)))]
    assert not any(before)
    assert len(after) == 1
    assert abs(after[0].before - 1) < 0.02 and abs(after[0].after / factor - 1) < 0.02


@given(st.lists(st.floats(0.001, 5000.0), min_size=2, max_size=200))
def test_the_deadline_is_between_floor_and_cap(pauses: list[float]) -> None:
    """After every step of every job the next deadline is at least the floor and at most the cap away."""
    watch = NoProgress(first_s=3600.0)
    for step, time in enumerate(itertools.accumulate(pauses)):
        watch.observe(step, time)
        deadline = watch.deadline()
        assert deadline is not None
        assert 59.999 <= deadline - time <= 3600.001


@given(st.lists(st.tuples(st.integers(-5, 500), st.floats(0, 1e6)), max_size=100))
def test_no_progress_accepts_any_history(history: list[tuple[int, float]]) -> None:
    """Steps that go back and times that do not increase neither raise nor take more memory."""
    watch = NoProgress()
    for step, time in history:
        watch.observe(step, time)
        watch.overdue()
        deadline = watch.deadline()
        assert deadline is not None
        assert math.isfinite(deadline)
    assert len(pickle.dumps(watch)) < 3000


cells = st.one_of(
    st.integers(-5, 300).map(str), st.floats().map(repr), st.text(max_size=5), st.sampled_from(["", "nan"])
)
lines = st.lists(cells, max_size=4).map("\t".join)


@given(st.sampled_from(["step\tloss\n", "grad_norm\tstep\tloss\r\n", ""]), st.lists(lines, max_size=30), st.binary())
def test_any_file_is_read_or_refused_with_its_place(header: str, body: list[str], tail: bytes) -> None:
    """Any bytes give samples that a detector accepts, or one usage error that names the file."""
    data = (header + "\n".join(body)).encode(errors="surrogatepass") + tail
    detector = LossDetector()
    try:
        for sample in read_curve(io.BytesIO(data), "it"):
            assert sample.step >= 0
            if sample.loss is not None:
                detector.observe(sample.step, sample.loss)
    except UsageError as error:
        assert str(error).startswith("it:")
        assert "\n" not in str(error)
