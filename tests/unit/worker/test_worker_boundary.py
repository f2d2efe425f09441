"""Step boundaries in a worker: it waits, saves once, goes on after a failed save, and counts one boundary per step."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import ftcore.worker
from ftcore.shm import page
from ftcore.shm.boundary import BoundaryOrders
from ftcore.worker import _boundary, _progress


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[BoundaryOrders]:
    """The agent's side of this process's page."""
    fd = page.create()
    monkeypatch.setattr(_progress, "_opened", _progress.ProgressCounter(page.PageWriter(fd)))
    monkeypatch.setattr(_boundary, "_of_process", None)
    reader = page.PageReader(fd)
    yield reader.orders
    reader.close()
    os.close(fd)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.002)
    raise AssertionError("not in ten seconds")


def test_a_worker_waits_until_it_is_let_go_on(orders: BoundaryOrders) -> None:
    """It says where it waits, shows signs of progress, and moves up to a later boundary on order."""
    ftcore.worker.boundary(1)
    orders.stop_at(1)

    def train() -> None:
        for step in range(2, 6):
            ftcore.worker.boundary(step)

    training = threading.Thread(target=train)
    training.start()
    until(lambda: orders.read().waits)
    assert (orders.read().reached, orders.read().stops_at) == (2, 2)
    orders.stop_at(4)
    until(lambda: orders.read().waits and orders.read().reached == 4)
    assert training.is_alive()
    orders.stop_at(0)
    training.join(10)
    assert (orders.read().reached, orders.read().waits) == (5, False)


def test_a_waiting_worker_is_not_still(orders: BoundaryOrders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signs of progress go on, so that a pause is no hang."""
    signs: list[int] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: orders.stop_at(0) if len(signs) == 3 else None)
    counter = _progress.progress()
    boundary = _boundary.StepBoundary(counter.boundary_words, signs.append)
    orders.stop_at(1)
    boundary.reached(1)
    assert len(signs) == 3


def test_a_worker_saves_once_per_boundary(orders: BoundaryOrders, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while it waits there; the script learns which step it has completed."""
    saved: list[int] = []
    assert ftcore.worker.on_save(saved.append) is not None
    assert orders.read().abilities == ("pause", "checkpoint")
    orders.save_at(2)
    for step in (101, 102, 103):
        ftcore.worker.boundary(step)
    assert saved == [102]
    rounds: Iterator[Callable[[], None]] = iter([lambda: orders.save_at(4), lambda: None, lambda: orders.stop_at(0)])
    monkeypatch.setattr(time, "sleep", lambda seconds: next(rounds)())
    orders.stop_at(4)
    ftcore.worker.boundary(104)
    assert saved == [102, 104]
    assert (orders.read().saved, orders.read().error, orders.read().waits) == (4, "", False)


def test_a_failed_save_is_reported_and_training_goes_on(
    orders: BoundaryOrders, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next save of the same script can succeed."""

    @ftcore.worker.on_save
    def save(step: int) -> None:
        if step == 1:
            raise OSError(28, "No space left on device")

    orders.save_at(1)
    ftcore.worker.boundary(1)
    assert orders.read().error == "OSError: [Errno 28] No space left on device"
    assert "the requested checkpoint failed: OSError: [Errno 28] No space left" in capsys.readouterr().err
    orders.save_at(2)
    ftcore.worker.boundary(2)
    assert (orders.read().saved, orders.read().error) == (2, "")


def test_an_interrupted_wait_ends(orders: BoundaryOrders, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that raises leaves no page that says the worker waits."""

    def interrupt(seconds: float) -> None:
        assert orders.read().waits
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    orders.stop_at(1)
    with pytest.raises(KeyboardInterrupt):
        ftcore.worker.boundary(1)
    assert not orders.read().waits


def test_without_boundary_a_script_does_not_save(orders: BoundaryOrders) -> None:
    """The optimizer's hook runs in the middle of the script's loop: it can wait there and nothing more."""
    saved: list[int] = []
    ftcore.worker.on_save(saved.append)
    orders.save_at(1)
    _boundary.step_boundary().stepped()
    assert saved == []
    assert "the script calls `ftcore.worker.boundary` and `on_save`" in orders.read().error


def test_without_on_save_a_script_does_not_save(orders: BoundaryOrders) -> None:
    """An order that it has not declared to carry out is answered."""
    orders.save_at(1)
    ftcore.worker.boundary(1)
    assert orders.read().abilities == ("pause",)
    assert "`on_save`" in orders.read().error


def test_the_first_boundary_of_the_script_replaces_that_of_the_hook(orders: BoundaryOrders) -> None:
    """One number per step, whether the hook counted the first one or not."""
    for step in (1, 2, 3):
        _boundary.step_boundary().stepped()
        ftcore.worker.boundary(step)
        assert orders.read().reached == step


def test_a_script_without_boundary_is_counted_by_its_hook(orders: BoundaryOrders) -> None:
    """Every step of its first optimizer."""
    for step in (1, 2, 3):
        _boundary.step_boundary().stepped()
        assert orders.read().reached == step


@pytest.mark.parametrize("old", [False, True])
def test_outside_ftrun_nothing_happens(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither without a page nor on one of an older agent."""
    fd = page.create()
    if old:
        os.pwrite(fd, b"ftPage02", 0)
    writer = page.PageWriter(fd) if old else None
    monkeypatch.setattr(_progress, "_opened", _progress.ProgressCounter(writer))
    monkeypatch.setattr(_boundary, "_of_process", None)
    before = os.pread(fd, page.PAGE_BYTES, 0)
    ftcore.worker.on_save(lambda step: None)
    _boundary.step_boundary().stepped()
    ftcore.worker.boundary(1)
    assert os.pread(fd, page.PAGE_BYTES, 0) == before
    os.close(fd)
