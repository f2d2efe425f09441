"""Limits that are learned: of sections, and of the time without a step."""

import pytest

from ftcore.faults.detectors.no_progress import FACTOR, LEARNED_STEPS, PATIENCE, NoProgress
from ftcore.faults.detectors.sections import FACTOR as TIMES
from ftcore.faults.detectors.sections import SEEN_MIN, SectionLimits


def test_a_section_has_a_limit_once_it_ended_often_enough() -> None:
    """Over several processes; times of another section do not count."""
    limits = SectionLimits(floor_s=60.0)
    limits.observe("evaluation", SEEN_MIN - 1, 30.0)
    assert limits.limit_s("evaluation") is None
    limits.begin()
    assert limits.limit_s("evaluation") is None
    limits.observe("evaluation", 1, 20.0)
    limits.observe("checkpoint", SEEN_MIN, 1.0)
    assert limits.limit_s("evaluation") == TIMES * 30.0
    assert limits.limit_s("checkpoint") == 60.0
    assert limits.limit_s("upload") is None


def test_a_section_that_was_interrupted_gets_more_time() -> None:
    """The same hang would otherwise be found again and again, if it is none."""
    limits = SectionLimits(floor_s=1.0)
    limits.observe("evaluation", SEEN_MIN, 10.0)
    limits.interrupted("evaluation", 50.0)
    limits.begin()
    assert limits.limit_s("evaluation") == TIMES * 50.0


def test_the_first_step_is_learned_process_by_process() -> None:
    """It happens once in each."""
    limits = SectionLimits(floor_s=1.0)
    for seconds in (10.0, 40.0, 20.0):
        assert limits.limit_s("first step") is None
        limits.begin()
        limits.took("first step", seconds)
    assert limits.limit_s("first step") == TIMES * 40.0


def steps(count: int, step_s: float, covered_s: float = 0.0) -> NoProgress:
    """A rank that has made steps, each with a section of some seconds beside its own time."""
    learned = NoProgress(floor_s=60.0)
    for step in range(count):
        learned.observe(step, step * (step_s + covered_s), step * covered_s)
    return learned


def test_the_time_without_a_step_has_a_limit_from_the_twentieth_step_on() -> None:
    """A multiple of the usual step time, and at least of the floor."""
    assert steps(LEARNED_STEPS, 10.0).limit_s() is None
    assert steps(LEARNED_STEPS + 1, 10.0).limit_s() == PATIENCE * FACTOR * 10.0
    assert steps(LEARNED_STEPS + 1, 1.0).limit_s() == PATIENCE * 60.0


def test_sections_are_no_part_of_a_step() -> None:
    """An evaluation with every step does not make steps look slow."""
    learned = steps(30, 10.0, covered_s=90.0)
    assert learned.usual_s() == pytest.approx(10.0)


def test_a_time_without_activity_that_ended_raises_the_limit() -> None:
    """So does a step that exceeded its deadline when it was tried before."""
    learned = steps(30, 1.0)
    learned.idled(100.0)
    assert learned.limit_s() == PATIENCE * 100.0
    for _ in range(2):
        learned.overdue()
    assert learned.limit_s() == PATIENCE**2 * 100.0
