"""Hooks that end the phases of a step: data loader, backward pass, and waits for other ranks.

| where | what it ends |
|---|---|
| ``DataLoader``'s iterator | ``other`` at its call, ``data`` at its return |
| ``torch.autograd.backward`` | ``forward`` at its call, ``backward`` at its end |
| an optimizer's step | ``optimizer`` at its end, in ``_hooks.py``; a hook before it would break compiled graphs |
| ``Work.wait``, DDP's synchronisation of buffers | nothing: their time is ``communication`` |

DDP and FSDP wait for other ranks at the end of the backward pass, in C++, after all gradients are computed. A callback
of the autograd engine that is registered before theirs runs before theirs, and separates the two.

House rules as in ``_hooks.py``.
"""

import functools
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.shm.phases import BACKWARD, COMMUNICATION, DATA, FORWARD, OTHER
from ftcore.worker import _groups
from ftcore.worker._phases import PhaseTimer

_CAPTURED: Final = "torch._dynamo.compiled_autograd"


def loads(clock: PhaseTimer, plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap ``__next__`` of a data loader's iterator."""
    now, mark = time.monotonic_ns, clock.mark

    @functools.wraps(plain)
    def next_batch(iterator: Any) -> Any:
        mark(OTHER, now())
        try:
            return plain(iterator)
        finally:
            mark(DATA, now())

    return next_batch


def waits(clock: PhaseTimer, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call that waits for other ranks."""
    now, waited = time.monotonic_ns, clock.waited

    @functools.wraps(plain)
    def wait(*args: Any, **kwargs: Any) -> Any:
        device = clock.device
        if device is not None and device.sampling:
            device.wait_begins()
        began = now()
        try:
            return plain(*args, **kwargs)
        except Exception as error:
            _groups.note_failure(error)
            raise
        finally:
            waited(now() - began)
            if device is not None and device.sampling:
                device.wait_ends()

    return wait


def stream_waits(clock: PhaseTimer, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``torch.cuda.Stream.wait_event``: FSDP lets the compute stream wait for a collective so."""
    current = sys.modules["torch.cuda"].current_stream

    @functools.wraps(plain)
    def wait_event(stream: Any, event: Any) -> Any:
        device = clock.device
        if device is None or not device.sampling or stream != current():
            return plain(stream, event)
        device.wait_begins()
        try:
            return plain(stream, event)
        finally:
            device.wait_ends()

    return wait_event


class PassMarks:
    """Marks of a backward pass; a pass inside another one, as of checkpointed activations, belongs to that one.

    Args:
        clock: the clock.
        hide: hides the functions that the autograd engine calls from ``torch.compile``.
    """

    def __init__(self, clock: PhaseTimer, hide: Callable[[Any], Any]) -> None:
        self._clock = clock
        self._depth = 0
        self._computed = False
        self._handle: Any = None
        self._queued, self._gradients_computed = hide(self._queue), hide(self._mark)
        self._queue_callback = sys.modules["torch.autograd"].Variable._execution_engine.queue_callback
        distributed: Any = sys.modules["torch.distributed"]
        self._shares = distributed.is_initialized if distributed.is_available() else lambda: False

    def begins(self, now: int, tensors: Any) -> None:
        """The pass begins.

        Args:
            now: monotonic nanoseconds.
            tensors: what it is computed from: a tensor, or a sequence of them.
        """
        self._depth += 1
        if self._depth > 1:
            return
        self._clock.mark(FORWARD, now)
        self._clock.passed_back()
        if self._clock.measures and self._shares() and not _is_captured():
            first = tensors if hasattr(tensors, "grad_fn") else next(iter(tensors), None)
            node = getattr(first, "grad_fn", None)
            if node is not None:
                self._handle = node.register_prehook(self._queued)

    def ends(self, now: int) -> None:
        """The pass ends."""
        self._depth -= 1
        if self._depth:
            return
        self._clock.mark(COMMUNICATION if self._computed else BACKWARD, now)
        self._computed = False
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _queue(self, _gradients: Any) -> None:
        self._queue_callback(self._gradients_computed)

    def _mark(self) -> None:
        self._clock.mark(BACKWARD, time.monotonic_ns())
        self._computed = True


def _is_captured() -> bool:
    """Whether compiled autograd captures backward passes; it would capture our callback as well."""
    module: Any = sys.modules.get(_CAPTURED)
    return bool(module is not None and getattr(module, "compiled_autograd_enabled", False))


def install(clock: PhaseTimer) -> Callable[[Callable[[Any], Any]], None]:
    """Install the hooks but those of the backward pass and the optimizer. Torch must be imported.

    Returns:
        A function that installs them again, each wrapped by its argument, which hides them from ``torch.compile``.
    """
    targets = [(owner, name, wrap, getattr(owner, name)) for owner, name, wrap in _targets() if hasattr(owner, name)]

    def place(hide: Callable[[Any], Any]) -> None:
        for owner, name, wrap, plain in targets:
            setattr(owner, name, hide(wrap(clock, plain)))

    place(lambda function: function)
    return place


def _targets() -> list[tuple[Any, str, Callable[[PhaseTimer, Any], Any]]]:
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import dataloader

    found: list[tuple[Any, str, Callable[[PhaseTimer, Any], Any]]] = [
        (dataloader._BaseDataLoaderIter, "__next__", loads),
        (DistributedDataParallel, "_sync_buffers", waits),
        (sys.modules["torch.cuda"].Stream, "wait_event", stream_waits),
    ]
    if sys.modules["torch.distributed"].is_available():
        from torch._C._distributed_c10d import Work

        found.append((Work, "wait", waits))
    return found
