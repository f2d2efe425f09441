"""Random number generators of the process: torch on the CPU and on every CUDA device, NumPy, ``random``.

``capture`` is cheap, so that it can run between two steps; ``packed`` turns what it returned into a Python value of a
checkpoint later. House rules: no device is initialised here.
"""

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ftcore.worker.state.trees import byte_vector, bytes_of

TWISTER_BYTES = 2500
"""Memory of a Mersenne Twister: 624 words of 32 bits, and the position in them."""

SEEN_BYTES = 64
"""Bytes of the words that are compared, beside the position."""

_HEAD_BYTES = object().__sizeof__()


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
    if torch.cuda.is_initialized():
        cuda = tuple(generator.get_state() for generator in torch.cuda.default_generators)
    numpy = sys.modules.get("numpy")
    state = _numpy.state() if numpy is not None else None
    return CapturedRng(torch.get_rng_state(), cuda, state, _python.state())


class _Twister:
    """Reads the state of a Mersenne Twister, which takes 15 us to 60 us, only if it may have changed.

    A training step seldom uses these generators. A number that is drawn moves the position; once all words are used,
    and if the generator is seeded, all words change. So the position and the first words are compared: after a step,
    little memory is in the processor's cache. A number that is left over of a pair of normal ones is not in there, so a
    state with one is read each time; so is one whose memory is not as expected.

    Args:
        read: returns the state.
        generator: returns the generator in use.
        memory: returns the addresses of a generator's position and of its words; None: they are not known.
        expected: returns what these hold for a state; None: the state has more than that.
    """

    def __init__(
        self,
        read: Callable[[], Any],
        generator: Callable[[], Any],
        memory: Callable[[Any], tuple[int, int] | None],
        expected: Callable[[Any], tuple[int, bytes] | None],
    ) -> None:
        self._read, self._generator, self._memory, self._expected = read, generator, memory, expected
        self._seen: tuple[Any, Any, Any] | None = None
        """The generator whose memory is looked at, which must live as long; its position, and its words."""
        self._last: tuple[int, bytes, Any] | None = None

    def state(self) -> Any:
        """The state now."""
        generator, seen, last = self._generator(), self._seen, self._last
        if seen is None or seen[0] is not generator:
            self._seen, last = self._look(generator), None
        elif last is not None and seen[1].value == last[0] and seen[2].raw == last[1]:
            return last[2]
        state = self._read()
        self._last = None
        if self._seen is not None:
            _, position, words = self._seen
            found = (int(position.value), bytes(words.raw))
            self._last = (*found, state) if found == self._expected(state) else None
        return state

    def _look(self, generator: Any) -> tuple[Any, Any, Any] | None:
        found = self._memory(generator)
        if found is None:
            return None
        position, words = found
        return generator, ctypes.c_int32.from_address(position), (ctypes.c_char * SEEN_BYTES).from_address(words)

    def forget(self) -> None:
        """Read the state the next time: it was set."""
        self._last = None


def _python_memory(generator: Any) -> tuple[int, int] | None:
    """CPython's ``_random.Random``: its position and its words follow the head of the object."""
    if type(generator) is not random.Random or generator.__sizeof__() < _HEAD_BYTES + TWISTER_BYTES:
        return None
    position = id(generator) + _HEAD_BYTES
    return position, position + 4


def _python_expected(state: Any) -> tuple[int, bytes] | None:
    _, words, left_over = state
    if left_over is not None:
        return None
    return words[-1], struct.pack(f"={len(words) - 1}I", *words[:-1])[:SEEN_BYTES]


def _numpy_generator() -> Any:
    get = getattr(sys.modules["numpy"].random, "get_bit_generator", None)  # since NumPy 1.24
    return get() if get is not None else None


def _numpy_memory(generator: Any) -> tuple[int, int] | None:
    """NumPy's bit generator, whose address it gives out for use from C: its words and its position."""
    if type(generator).__name__ != "MT19937":
        return None
    words = generator.ctypes.state_address
    return words + TWISTER_BYTES - 4, words


def _numpy_expected(state: Any) -> tuple[int, bytes] | None:
    found = state["state"]
    return None if state["has_gauss"] else (int(found["pos"]), found["key"].tobytes()[:SEEN_BYTES])


_python = _Twister(random.getstate, lambda: getattr(random, "_inst", None), _python_memory, _python_expected)
_numpy = _Twister(
    lambda: sys.modules["numpy"].random.get_state(legacy=False), _numpy_generator, _numpy_memory, _numpy_expected
)


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
    _python.forget()
    random.setstate((version, struct.unpack(f"<{len(words) // 4}I", words), gauss))
    if "numpy" in value:
        import numpy

        key, pos, has_gauss, cached = value["numpy"]
        _numpy.forget()
        numpy.random.set_state(("MT19937", numpy.frombuffer(key, dtype=numpy.uint32), pos, has_gauss, cached))
    if "cuda" in value and torch.cuda.is_available():
        torch.cuda.init()
        for generator, state in zip(torch.cuda.default_generators, value["cuda"], strict=False):
            generator.set_state(byte_vector(state))
