"""Tests of each rule of the detectors, on small cases."""

import itertools
import math
import pickle
import random
import subprocess
import sys

import pytest

from ftcore.faults.detectors import LossDetector, NoProgress, NormSpike, NormThreshold
from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.norm import STEPS_MAX
from ftcore.faults.detectors.robust import Window
from ftcore.faults.detectors.spike import SpikeDetector


def noise(count: int, level: float = 3.0, sigma: float = 0.05, seed: int = 7) -> list[float]:
    source = random.Random(seed)
    return [source.gauss(level, sigma) for _ in range(count)]


def findings_of(detector: SpikeDetector, values: list[float], first: int = 0) -> list[Finding]:
    found = (detector.observe(step, value) for step, value in enumerate(values, start=first))
    return [finding for finding in found if finding is not None]


# -- the window


def test_a_window_judges_by_the_median_and_the_nearest_half() -> None:
    """Median and MAD of a small window; the oldest sample is dropped."""
    window = Window(5)
    for value in (100.0, 1.0, 2.0, 4.0, 8.0, 16.0):
        window.push(value)
    assert (window.median(), window.mad(), window.spread(), len(window)) == (4.0, 3.0, 15.0, 5)


def test_a_window_without_mad_falls_back_on_the_mean() -> None:
    """If more than half of the samples are equal, the mean absolute deviation is used (Iglewicz and Hoaglin)."""
    window = Window(4)
    for value in (1.0, 1.0, 1.0, 5.0):
        window.push(value)
    assert window.mad() == 0
    assert window.sigma() == pytest.approx(math.sqrt(math.pi / 2))


# -- loss


def test_a_single_step_spike_is_reported_once() -> None:
    """One high step is reported with the usual value; a later spike opens a new episode, unless it follows at once."""
    values = noise(300)
    values[200] = values[220] = values[223] = 5.0
    found = findings_of(LossDetector(), values)
    assert {finding.kind for finding in found} == {"loss-spike"}
    assert [(finding.step, finding.since) for finding in found] == [(200, 200), (220, 220), (223, 220)]
    assert found[0].usual == pytest.approx(3.0, abs=0.05)
    assert found[0].score > 20


def test_a_loss_that_stays_up_is_a_divergence() -> None:
    """From the tenth high sample of an episode on the kind changes; the first step of the episode is kept."""
    found = findings_of(LossDetector(), noise(200) + noise(15, level=7.0))
    assert [finding.kind for finding in found] == ["loss-spike"] * 9 + ["loss-divergence"] * 6
    assert {finding.since for finding in found} == {200}


def test_a_lasting_new_level_becomes_normal() -> None:
    """A permanently higher loss is reported for the length of a window, then learned."""
    found = findings_of(LossDetector(), noise(200) + noise(400, level=7.0))
    assert len(found) == 50


def test_a_few_lower_samples_do_not_end_a_divergence() -> None:
    """Fewer than three calm samples in a row are dropped, and do not widen the window."""
    values = [*noise(200), 7.0, 4.0, 7.5, 3.0, 3.1, 7.2, *noise(10), 7.0]
    found = findings_of(LossDetector(), values)
    assert [finding.since for finding in found if finding.value >= 7] == [200, 200, 200, 216]


def test_start_up_and_drift_are_normal() -> None:
    """A loss that jumps in its first steps, falls, and then rises slowly is not a spike."""
    leap = [12.4, 12.5, 44.2, *(48 * 0.95**n for n in range(97))]
    climb = [leap[-1] * 1.004**n for n in range(200)]
    assert findings_of(LossDetector(), leap + climb) == []


def test_values_that_are_not_finite_are_always_reported() -> None:
    """NaN and both infinities are reported at every step, from the first on, and never learned."""
    detector = LossDetector()
    found = findings_of(detector, [math.nan, math.inf, -math.inf, *noise(150), math.nan])
    assert [(finding.kind, finding.step, finding.since) for finding in found] == [
        ("loss-nan", 0, 0),
        ("loss-nan", 1, 0),
        ("loss-nan", 2, 0),
        ("loss-nan", 153, 153),
    ]
    assert found[-1].usual == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize(("value", "high"), [(2.07, False), (2.09, True)])
def test_a_constant_window_causes_no_alarm_by_the_last_digit(value: float, high: bool) -> None:
    """With a constant window the floor decides: 4 % above it."""
    assert bool(findings_of(LossDetector(), [2.0] * 150 + [value])) is high


def test_a_short_window_detects_only_large_spikes() -> None:
    """After a resume three samples suffice to detect a doubled loss, but not a rise by a fifth."""
    assert [f.step for f in findings_of(LossDetector(), [3.32, 3.42, 3.68, 7.27], first=8738)] == [8741]
    assert findings_of(LossDetector(), [3.0, 3.0, 3.01, 3.6], first=8738) == []
    assert findings_of(LossDetector(), [3.0, 3.01, 9.0], first=8738) == []


def test_a_step_back_ends_the_episode() -> None:
    """After a rollback a spike at the same step is a new one."""
    detector = LossDetector()
    findings_of(detector, [*noise(200), 7.0])
    again = detector.observe(200, 7.0)
    assert again is not None
    assert again.since == again.step == 200


def test_a_window_of_zeros_judges_no_sample() -> None:
    """The scale of a curve that was always 0 is not known."""
    assert findings_of(LossDetector(), [0.0] * 150 + [1e-9]) == []


def test_huge_samples_do_not_overflow() -> None:
    """The largest floats are judged like others."""
    values = [-1.7e308 if n % 2 else 1.7e308 for n in range(150)]
    assert findings_of(LossDetector(), values) == []
    assert [f.score for f in findings_of(LossDetector(), [-1.7e308] * 150 + [1.7e308])] == [math.inf]


@pytest.mark.parametrize(
    "wrong", [{"window": 2}, {"limit": 0}, {"limit": math.nan}, {"floor": -1}, {"warmup_steps": -1}, {"lasting": 0}]
)
def test_invalid_arguments_are_refused(wrong: dict[str, float]) -> None:
    """A detector with invalid arguments is not created."""
    with pytest.raises(ValueError, match="expected window"):
        LossDetector(**wrong)  # type: ignore[arg-type]


# -- gradient norm


def test_the_norm_threshold_is_off_by_default() -> None:
    """Without a threshold no norm is abnormal."""
    assert NormThreshold().observe(1, math.inf) is None


@pytest.mark.parametrize(("norm", "abnormal"), [(2.999, False), (3.0, True), (45.7, True), (math.nan, True)])
def test_at_or_over_the_threshold(norm: float, abnormal: bool) -> None:
    """A norm at the threshold is abnormal; NaN always is."""
    finding = NormThreshold(3.0).observe(2, norm)
    assert (finding is not None) is abnormal


def test_a_repeated_abnormal_step_is_tolerated() -> None:
    """The second finding is tolerated; other steps are judged as before."""
    detector = NormThreshold(3.0)
    first, second = detector.observe(2, 45.70), detector.observe(2, 45.71)
    assert first is not None
    assert second is not None
    assert (first.tolerated, second.tolerated) == (False, True)
    assert detector.observe(3, 1.0) is None
    third = detector.observe(3, 9.0)
    assert third is not None
    assert not third.tolerated


def test_a_repaired_step_is_not_reported_again() -> None:
    """A normal norm of the second computation is no finding."""
    detector = NormThreshold(3.0)
    detector.observe(5, 9.0)
    assert detector.observe(5, 1.5) is None


def test_abnormal_steps_are_bounded() -> None:
    """Endless abnormal steps do not fill the memory: the oldest are dropped."""
    detector = NormThreshold(3.0)
    for step in range(STEPS_MAX + 10):
        detector.observe(step, 4.0)
    oldest, dropped = detector.observe(10, 4.0), detector.observe(9, 4.0)
    assert oldest is not None
    assert dropped is not None
    assert (oldest.tolerated, dropped.tolerated) == (True, False)


def test_a_threshold_is_positive() -> None:
    """With 0 or NaN every step would be abnormal."""
    for threshold in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="over 0"):
            NormThreshold(threshold)


def test_a_norm_spike_is_at_least_five_times_the_usual() -> None:
    """Norms vary by factors: less than five times the median is not reported."""
    values = [1.0] * 150
    assert findings_of(NormSpike(), [*values, 4.9]) == []
    assert [finding.kind for finding in findings_of(NormSpike(), [*values, 5.1, math.inf])] == [
        "norm-spike",
        "norm-nan",
    ]


# -- no progress


def stepped(watch: NoProgress, times: list[float], first: int = 1) -> None:
    for step, time in enumerate(times, start=first):
        watch.observe(step, time)


def test_nothing_is_overdue_before_a_round_begins() -> None:
    """A script without reported steps, in a round that was not announced, is never overdue."""
    assert NoProgress().deadline() is None


def test_the_first_step_has_an_allowance_of_its_own() -> None:
    """Half an hour, until a step time is known."""
    watch = NoProgress()
    watch.begin(100.0)
    assert watch.deadline() == 100 + 1800
    watch.observe(1, 130.0)
    assert watch.deadline() == 130 + 1800


@pytest.mark.parametrize(("seconds", "allowance"), [(0.1, 60), (20, 200), (1000, 3600)])
def test_the_allowance_follows_the_steps(seconds: float, allowance: float) -> None:
    """Ten times the usual step time, at least a minute, at most an hour."""
    watch = NoProgress()
    times = [seconds * n for n in range(1, 20)]
    stepped(watch, times)
    assert watch.deadline() == pytest.approx(times[-1] + allowance)


def test_one_long_step_hardly_changes_the_usual_step_time() -> None:
    """The usual step time is a median of the steps that are not long pauses."""
    watch = NoProgress()
    stepped(watch, list(itertools.accumulate([10.0] * 30 + [500.0] + [10.0] * 5)))
    assert watch.usual_s() == 10


def test_a_long_pause_is_allowed_again_at_any_step() -> None:
    """After an evaluation of 300 s the next pause may take twice as long."""
    watch = NoProgress()
    times = list(itertools.accumulate([1.0] * 30 + [300.0] + [1.0] * 30))
    stepped(watch, times)
    assert watch.deadline() == pytest.approx(times[-1] + 600, rel=1e-3)


def test_periodic_long_pauses_are_learned() -> None:
    """With an evaluation every 50 steps, a hang elsewhere is found after a minute, there after twice the pause."""
    watch = NoProgress()
    pauses = [300.0 if step % 50 == 0 else 1.0 for step in range(1, 231)]
    times = list(itertools.accumulate(pauses))
    for step, time in enumerate(times, start=1):
        watch.observe(step, time)
        if step > 150:
            due = (step + 1) % 50 in (49, 0)
            assert (watch.deadline() - time == pytest.approx(600, rel=0.01)) is due, step  # type: ignore[operator]
            assert (watch.deadline() - time == 60) is not due  # type: ignore[operator]


def test_a_missed_pause_makes_pauses_due_at_every_step() -> None:
    """From the missed pause on the long allowance applies to every step."""
    watch = NoProgress()
    pauses = [300.0 if step in (50, 100, 150) else 1.0 for step in range(1, 211)]
    times = list(itertools.accumulate(pauses))
    stepped(watch, times)
    assert watch.deadline() == pytest.approx(times[-1] + 600, rel=0.01)


def test_permanently_slower_steps_are_learned() -> None:
    """With longer sequences steps become slower: after a few of them the allowance follows."""
    watch = NoProgress()
    stepped(watch, list(itertools.accumulate([1.0] * 100 + [20.0] * 10)))
    assert watch.usual_s() == 20


def test_an_overdue_step_gets_more_time_when_it_is_tried_again() -> None:
    """Four times more each time, so that a job that was only slow continues."""
    watch = NoProgress()
    stepped(watch, [float(n) for n in range(30)])
    for times in (1, 4, 16):
        watch.begin(1000.0)
        stepped(watch, [1000.0, 1001.0], first=28)
        assert watch.deadline() == 1001 + 60 * times
        watch.overdue()
    stepped(watch, [1002.0], first=30)
    assert watch.deadline() == 1002 + 60


def test_the_time_of_several_steps_is_divided() -> None:
    """An observer that sees ten steps at once learns the time of one."""
    watch = NoProgress()
    for look in range(20):
        watch.observe(10 * look, 30.0 * look)
    assert watch.usual_s() == 3


def test_suspended_time_postpones_the_deadline() -> None:
    """The deadline moves by the time that the machine was suspended; a step back is not learned."""
    watch = NoProgress()
    stepped(watch, [float(n) for n in range(30)])
    watch.excuse(500)
    assert watch.deadline() == 29 + 500 + 60
    watch.observe(5, 2000.0)
    assert watch.usual_s() == 1


@pytest.mark.parametrize("wrong", [{"floor_s": 0}, {"cap_s": 1.0}, {"first_s": 0}, {"cap_s": math.inf}])
def test_invalid_allowances_are_refused(wrong: dict[str, float]) -> None:
    """A deadline with invalid arguments is not created."""
    with pytest.raises(ValueError, match="expected 0 < floor_s"):
        NoProgress(**wrong)


# -- the house


def test_detectors_are_cheap_to_import() -> None:
    """Their import loads only small parts of the standard library."""
    code = (
        "import sys; before = set(sys.modules); import ftcore.faults.detectors;"
        "print([name for name in set(sys.modules) - before if name.split('.')[0] in"
        " ('attrs', 'attr', 'msgspec', 'torch', 'numpy', 'asyncio', 'grpc', 'structlog')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_detector_can_be_pickled() -> None:
    """A detector pickled in the middle of an episode continues unchanged."""
    values = [*noise(200), 7.0, 7.1, 3.0, *noise(5, level=7.0), *noise(20)]
    whole, half = LossDetector(), LossDetector()
    expected = findings_of(whole, values)
    found = findings_of(half, values[:203])
    found += findings_of(pickle.loads(pickle.dumps(half)), values[203:], first=203)
    assert found == expected
