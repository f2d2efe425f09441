"""Random number generators of the process: torch on the CPU and on every CUDA device, NumPy, ``random``.

``capture`` is cheap, so that it can run between two steps; ``packed`` turns what it returned into a Python value of a
checkpoint later. House rules: no device is initialised here.
"""

import random
import struct
import sys
from typing import Any, NamedTuple

import torch

from ftcore.worker.state.trees import byte_vector, bytes_of


class CapturedRng(NamedTuple):
    """States of the generators.

    Args:
        torch: of the CPU.
        cuda: of every device; empty: CUDA is not in use.
        numpy: of NumPy's legacy generator; None: NumPy is not in use.
        python: of ``random``.
    """

    torch: Any
    cuda: tuple[Any, ...]
    numpy: Any
    python: Any


def capture() -> CapturedRng:
    """Return the states of all generators."""
    cuda: tuple[Any, ...] = ()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        cuda = tuple(generator.get_state() for generator in torch.cuda.default_generators)
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state(legacy=False) if numpy is not None else None
    return CapturedRng(torch.get_rng_state(), cuda, state, random.getstate())


def packed(captured: CapturedRng) -> dict[str, Any]:
    """Return captured states as a Python value for a checkpoint."""
    version, words, gauss = captured.python
    found: dict[str, Any] = {
        "torch": bytes_of(captured.torch),
        "python": [version, struct.pack(f"<{len(words)}I", *words), gauss],
    }
    if captured.cuda:
        found["cuda"] = [bytes_of(state) for state in captured.cuda]
    if captured.numpy is not None and captured.numpy["bit_generator"] == "MT19937":
        state, more = captured.numpy["state"], captured.numpy
        found["numpy"] = [state["key"].tobytes(), int(state["pos"]), int(more["has_gauss"]), float(more["gauss"])]
    return found


def restore(value: dict[str, Any]) -> None:
    """Set all generators to packed states; those of other devices than the saved ones stay as they are."""
    torch.set_rng_state(byte_vector(value["torch"]))
    version, words, gauss = value["python"]
    random.setstate((version, struct.unpack(f"<{len(words) // 4}I", words), gauss))
    if "numpy" in value:
        import numpy

        key, pos, has_gauss, cached = value["numpy"]
        numpy.random.set_state(("MT19937", numpy.frombuffer(key, dtype=numpy.uint32), pos, has_gauss, cached))
    if "cuda" in value and torch.cuda.is_available():
        torch.cuda.init()
        for generator, state in zip(torch.cuda.default_generators, value["cuda"], strict=False):
            generator.set_state(byte_vector(state))
