"""The states of the random number generators as a value of the public API."""

import random
import subprocess
import sys

import numpy
import torch

from ftcore import worker
from ftcore.checkpoint import values


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


def test_numpy_is_not_imported_for_it() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from ftcore import worker; import random\n"
        "states = worker.get_rng_states(); drawn = random.random(); worker.set_rng_states(states)\n"
        "assert random.random() == drawn and 'numpy' not in states and sys.modules['numpy'] is None"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
