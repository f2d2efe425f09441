"""The states of the random number generators as a value of the public API."""

import itertools
import random
import subprocess
import sys
from collections.abc import Callable

import numpy
import pytest
import torch

from ftcore import worker
from ftcore.checkpoint import values
from ftcore.worker._data import RegisteredData
from ftcore.worker.state import rng


def drawn() -> tuple[float, ...]:
    gauss = random.gauss(0, 1), float(numpy.random.standard_normal())  # both keep a second number for the next call
    return (*gauss, random.random(), float(numpy.random.random()), float(torch.rand(1)), float(torch.randn(1)))


def test_the_same_numbers_are_drawn_again() -> None:
    """Also after the states were in a checkpoint, and other numbers were drawn."""
    drawn()
    saved = values.decode(values.encode(worker.get_rng_states(), "states"))
    first, second = drawn(), drawn()
    assert first != second
    worker.set_rng_states(saved)
    assert (drawn(), drawn()) == (first, second)


@pytest.mark.parametrize(("step", "draws"), [(0, True), (7, False)])
def test_data_that_is_read_on_draws_no_number(step: int, draws: bool) -> None:
    """A data loader draws a seed when it begins: once in an undisturbed training, so not again in one that goes on."""
    data = RegisteredData()
    data.source = torch.utils.data.DataLoader(torch.arange(8.0))  # type: ignore[arg-type]
    before = torch.get_rng_state()
    assert float(data.next_batch(step)) == 0.0
    assert (not torch.equal(torch.get_rng_state(), before)) == draws


def test_numpy_is_not_imported_for_it() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from ftcore import worker; import random\n"
        "states = worker.get_rng_states(); drawn = random.random(); worker.set_rng_states(states)\n"
        "assert random.random() == drawn and 'numpy' not in states and sys.modules['numpy'] is None"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def _python_normal() -> None:
    random.gauss(0.0, 1.0)


USES: tuple[Callable[[], object], ...] = (
    lambda: None,
    random.random,
    _python_normal,
    lambda: random.seed(7),
    numpy.random.rand,
    numpy.random.randn,
    lambda: numpy.random.seed(7),
    lambda: torch.rand(1),
    lambda: random.getrandbits(32 * 624),  # a whole turn: the position is the one of before
    lambda: numpy.random.rand(312),
)


def test_every_use_of_a_generator_is_seen() -> None:
    """A state is read again after each use, also if the use takes only a number that was left over."""
    for use in itertools.chain.from_iterable(itertools.product(USES, repeat=3)):
        use()
        found = rng.capture()
        assert found.python == random.getstate()
        expected = numpy.random.get_state(legacy=False)
        assert (found.numpy["has_gauss"], found.numpy["gauss"]) == (expected["has_gauss"], expected["gauss"])
        assert found.numpy["state"]["pos"] == expected["state"]["pos"]
        assert (found.numpy["state"]["key"] == expected["state"]["key"]).all()
        assert torch.equal(found.torch, torch.get_rng_state())


def test_unused_generators_are_not_read_again() -> None:
    """What makes a capture quick enough for each step."""
    random.seed(3)
    numpy.random.seed(3)
    first, second = rng.capture(), rng.capture()
    assert first.python is second.python and first.numpy is second.numpy


def test_restored_generators_are_read_again() -> None:
    drawn()
    kept = rng.packed(rng.capture())
    drawn()
    rng.capture()
    rng.restore(kept)
    assert rng.packed(rng.capture()) == kept
