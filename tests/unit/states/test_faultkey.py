"""When a fault counts as a repeat of the one before it."""

from typing import Any

import pytest

from ftcore.events.incident import Fault
from ftcore.states.faultkey import fault_key, is_same

REPORTED = "rank 0 on node0: UnpicklingError: pickle data was truncated (reading /data/a@b/30.ckpt)"
PRINTED = "rank 0 on node0: _pickle.UnpicklingError: pickle data was truncated"


def key(summary: str, step: int | None = None) -> str:
    where: dict[str, Any] = {"nodes": ("node0",), "ranks": (0,), "root": 1}
    return fault_key(Fault(cls="storage", detail="checkpoint-file", summary=summary, step=step, **where))


@pytest.mark.parametrize(("now", "before"), [(REPORTED, PRINTED), (PRINTED, REPORTED), (PRINTED, PRINTED)])
@pytest.mark.parametrize("step", [None, 7])
def test_an_exception_is_the_same_as_reported_and_as_printed(now: str, before: str, step: int | None) -> None:
    """Either of the two may be read first; the count of repeats must not restart."""
    assert is_same(key(now, step), key(before, step))


def test_another_exception_or_another_step_is_another_fault() -> None:
    """Class, message and step are compared; the step only if one was completed since."""
    assert not is_same(key("rank 0 on node0: EOFError: pickle data was truncated"), key(PRINTED))
    assert not is_same(key("rank 0 on node0: _pickle.UnpicklingError: invalid load key"), key(PRINTED))
    assert not is_same(key(REPORTED, 8), key(PRINTED, 7))
    assert is_same(key(REPORTED), key(PRINTED, 7))
