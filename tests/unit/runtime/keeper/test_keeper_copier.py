"""Which saves are copied."""

import pytest

from ftcore.runtime.keeper.copier import CALM_COPIES, CopyPace


def due(pace: CopyPace, stride: int = 1) -> list[int]:
    return [step for step in range(stride, 17 * stride, stride) if pace.is_due(step, stride)]


@pytest.mark.parametrize(("saves", "every"), [(0, 1), (1, 2), (2, 4), (3, 4), (4, 8), (7, 8), (8, 16)])
def test_a_copy_ends_before_the_next_one_is_due(saves: int, every: int) -> None:
    """It is a power of two, so that slower nodes copy some of the steps that faster ones copy."""
    pace = CopyPace()
    pace.copied(saves)
    assert pace.every == every > saves
    assert due(pace) == [step for step in range(1, 17) if step % every == 0]


def test_steps_without_a_save_do_not_count() -> None:
    """Every 2nd save of a script that saves every 10 steps."""
    pace = CopyPace()
    pace.copied(1)
    assert due(pace, 10) == [20, 40, 60, 80, 100, 120, 140, 160]


def test_copies_are_made_more_often_again_after_some_that_were_fast() -> None:
    """One slow copy among them begins the count anew."""
    pace = CopyPace()
    pace.copied(3)
    for _ in range(CALM_COPIES - 1):
        pace.copied(0)
    pace.copied(2)
    assert pace.every == 4
    for _ in range(CALM_COPIES):
        pace.copied(0)
    assert pace.every == 2
