"""Tests of the window of step times in the report of a fault, from synthetic pages."""

import msgspec
import pytest

from ftcore.cli.ctl_explain import last_steps
from ftcore.events.worker import EVIDENCE_BYTES_MAX, StepTimes
from ftcore.faults.window import MARKS_MAX, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, StepRing
from ftcore.ports import Progress

MS = 1_000_000


def page(steps: int, mono_ms: int, base: int = 1000) -> Progress:
    return Progress(steps=steps, step=base + steps, absolute=True, mono=mono_ms * MS, loss=None)


def filled(ranks: int, steps: int = 100, base_rank: int = 0) -> StepRing:
    ring = StepRing()
    ring.begin(base_rank)
    for step in range(1, steps + 1):
        ring.take([page(step, 250 * step) for _ in range(ranks)])
    return ring


def test_a_window_has_the_steps_before_a_fault() -> None:
    """The failed rank comes first; equal reads count once, several steps between two reads share one entry."""
    ring = StepRing()
    ring.begin(8)
    ring.take([None, None])
    ring.take([page(1, 100), page(1, 101)])
    ring.take([page(1, 100), page(2, 352)])
    ring.take([page(4, 850), page(2, 352)])
    assert ring.window(1000 * MS, rank=9) == (
        StepTimes(rank=9, step=1002, ago_ms=648, steps=(1,), took_ms=(251,)),
        StepTimes(rank=8, step=1004, ago_ms=150, steps=(3,), took_ms=(750,)),
    )


def test_a_window_is_reported_once() -> None:
    """Without a new step there is no further window; a new round starts without one."""
    ring = filled(2)
    assert ring.window(10**12)
    ring.take([page(100, 25_000)] * 2)
    assert ring.window(10**12) == ()
    ring.take([page(101, 26_000), None])
    assert ring.window(10**12)
    ring.begin(0)
    assert ring.window(10**12) == ()
    ring.take([page(1, 27_000)])
    assert ring.window(10**12) == (StepTimes(rank=0, step=1001, ago_ms=973_000),)


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
@pytest.mark.parametrize("used", [0, EVIDENCE_BYTES_MAX - 500, 2 * EVIDENCE_BYTES_MAX])
def test_a_window_fits_its_share_of_the_evidence(ranks: int, used: int) -> None:
    """It stays within the space that other evidence leaves, for any number of ranks, and keeps the failed one."""
    window = filled(ranks, base_rank=10_000).window(10**12, rank=10_000 + ranks - 1, used=used)
    room = min(WINDOW_BYTES_MAX, max(WINDOW_BYTES_MIN, EVIDENCE_BYTES_MAX - used))
    assert len(msgspec.json.encode(window)) <= room
    assert window[0].rank == 10_000 + ranks - 1
    assert set(window[0].took_ms) == {250}
    assert len(window[0].took_ms) == MARKS_MAX - 1 or len(msgspec.json.encode(window)) > room // 2


def test_a_window_as_two_lines_of_text() -> None:
    """The failed rank's times, oldest first, and the others in one line."""
    first = StepTimes(rank=3, step=41, ago_ms=1200, steps=(1, 1, 2), took_ms=(250, 251, 5000))
    others = [StepTimes(rank=rank, step=42, ago_ms=10, steps=(1, 1), took_ms=(250, 260 + rank)) for rank in (0, 1, 2)]
    assert last_steps([first, *others]) == [
        "rank 3 completed step 41 1.2 s before; the last steps took 250 251 2500 ms",
        "ranks 0 to 2 completed step 42; median 255 ms, maximum 262 ms per step",
    ]
    assert last_steps([StepTimes(rank=0, step=1, ago_ms=5)]) == ["rank 0 completed step 1 5 ms before"]
    assert last_steps(()) == []
