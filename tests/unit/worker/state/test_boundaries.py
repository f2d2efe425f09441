"""Which step boundary's state is complete, when a device is behind the training thread."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftcore.worker.state.boundaries import PassedBoundaries, PassedBoundary
from ftcore.worker.state.collect import StateCollection

DEVICE = 0


class Device:
    """Computes what is queued when it is told to; stands for a stream of CUDA."""

    def __init__(self) -> None:
        self.queued = self.computed = 0

    def record_event(self) -> "Mark":
        self.queued += 1
        return Mark(self, self.queued)


class Mark:
    def __init__(self, device: Device, place: int) -> None:
        self._device, self._place = device, place

    def query(self) -> bool:
        return self._place <= self._device.computed


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: made)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


def passes(boundaries: PassedBoundaries, device: Device, step: int, has: int = DEVICE) -> PassedBoundary:
    """The training thread is at a boundary; its state is on a device."""
    moment: Any = SimpleNamespace(step=step, collected=SimpleNamespace(device=has))
    return boundaries.add(moment, {DEVICE: device.record_event()})


def steps(boundaries: PassedBoundaries) -> None:
    boundaries.begin_step(DEVICE)
    boundaries.end_step()


def held(boundaries: PassedBoundaries) -> int:
    found = boundaries.held()
    return found.moment.step if found else -1


def test_a_device_before_the_optimizer_has_the_state_of_the_boundary(device: Device) -> None:
    """From when it has reached the boundary until it reaches the optimizer's step."""
    boundaries = PassedBoundaries()
    passes(boundaries, device, 7)
    steps(boundaries)
    assert "has stepped since the boundary of step 7" in boundaries.why_passed()
    found = []
    for computed in (0, 1, 2):
        device.computed = computed
        found.append(held(boundaries))
    assert found == [-1, 7, -1]


def test_the_training_thread_is_a_step_ahead(device: Device) -> None:
    """The device still has the state of the boundary before the newest one."""
    boundaries = PassedBoundaries()
    passes(boundaries, device, 7)
    steps(boundaries)
    newest = passes(boundaries, device, 8)
    device.computed = 1
    assert not boundaries.why_passed() and not newest.is_reached() and held(boundaries) == 7
    device.computed = 3
    assert newest.is_reached() and held(boundaries) == -1


def test_the_first_of_several_optimizers_changes_the_state(device: Device) -> None:
    boundaries = PassedBoundaries()
    passes(boundaries, device, 7)
    steps(boundaries)
    steps(boundaries)
    device.computed = 2  # the first one has begun, the second one has not
    assert held(boundaries) == -1


def test_a_state_that_is_not_all_on_the_device_is_not_held(device: Device) -> None:
    """The training thread has changed the rest already."""
    boundaries = PassedBoundaries()
    passes(boundaries, device, 7, has=-1)
    steps(boundaries)
    device.computed = 1
    assert held(boundaries) == -1


def test_a_step_that_is_not_seen(device: Device) -> None:
    """A step between the last two boundaries counts, not an older one."""
    boundaries = PassedBoundaries()
    found = [boundaries.stepped]
    for step, seen in enumerate((False, True, True, False)):
        if seen:
            steps(boundaries)
        passes(boundaries, device, step)
        found.append(boundaries.stepped)
    assert found == [False, False, True, True, False]


def test_without_a_device() -> None:
    """Only the training thread counts."""
    boundaries = PassedBoundaries()
    assert boundaries.newest is None and "no step boundary" in boundaries.why_passed()
    moment: Any = SimpleNamespace(step=1, collected=SimpleNamespace(device=-1))
    assert boundaries.add(moment, {}).is_reached()
    assert boundaries.is_at(1) and not boundaries.why_passed()
    boundaries.begin_step(-1)
    assert "in progress" in boundaries.why_passed()
    boundaries.end_step()
    assert not boundaries.is_at(1) and held(boundaries) == -1


def test_early_copies_keep_their_order() -> None:
    """Numbers of one type are copied in one call; what changes afterwards does not change the copies."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2))
    collection = StateCollection()
    collection.register({"model": model})
    collected = collection.collect()
    names = [entry.piece.name for entry in collected.early]
    assert sum(name.endswith("num_batches_tracked") for name in names) == 2
    for number, entry in enumerate(collected.early):
        entry.data.fill_(number)
    copies = collected.copied()
    for entry in collected.early:
        entry.data.fill_(-1)
    found = copies.tensors()
    assert [each.shape for each in found] == [entry.data.shape for entry in collected.early]
    assert [float(each.reshape(-1)[0]) for each in found] == [float(number) for number in range(len(names))]
