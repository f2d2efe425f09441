"""Progress of plain scripts: torch's public global optimizer hook counts completed steps on the page.

Backward passes have no hook, so a wrapper around ``torch.autograd.backward`` records their beginning and end. The other
phases of a step have hooks of their own (``_phase_hooks.py``).

House rules: a hook never raises into the training step, and costs a few microseconds. ``torch.compile`` must not trace
the hooks: traced hooks break graphs and warn on every rank. Only the first optimizer is counted, so that a script with
two of them (a GAN) does not count every step twice. The Adam family has its step number in its state and in
checkpoints: it is read once, so a resumed run continues to count. It is never read from a device, which would
synchronize. Steps of other optimizers, and backward passes, are signs of progress. ``torch.distributed.checkpoint``
steps an optimizer that has no state, to give it one, when it saves or loads; that is no step of the training.
"""

import functools
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from ftcore.shm.phases import OPTIMIZER
from ftcore.shm.rounds import PREPARED_ENV
from ftcore.worker import _groups, _phase_hooks, _rate, _roles, _section_hooks
from ftcore.worker._boundary import step_boundary
from ftcore.worker._empty_state import makes_empty_state
from ftcore.worker._hidden import hidden
from ftcore.worker._imports import when_imported
from ftcore.worker._progress import progress


class _StepCounter:
    def __init__(self) -> None:
        self._progress = progress()
        self._boundary = step_boundary()
        self._first: weakref.ref[Any] | None = None

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped; see torch's ``register_optimizer_step_post_hook``."""
        if makes_empty_state():
            return
        self._progress.phases.mark(OPTIMIZER, time.monotonic_ns())
        if self._first is None or self._first() is None:
            self._first = weakref.ref(optimizer)
            step = _step_in_state(optimizer)
            if step is not None:
                self._progress.resumed_at(step - 1)
            timeout_s = _group_timeout_s()
            if timeout_s is not None:
                self._progress.times_out(timeout_s)
            self._progress.works_as(_roles.role_of(optimizer))
        elif self._first() is not optimizer:
            self._progress.active(time.monotonic_ns())
            return
        self._progress.stepped()
        self._boundary.stepped()


def _step_in_state(optimizer: Any) -> int | None:
    try:
        for state in optimizer.state.values():
            step = state.get("step")
            if step is None or (hasattr(step, "device") and step.device.type != "cpu"):
                return None
            return int(step)
    except Exception:  # a custom optimizer may store anything there; counting from the start is still correct
        return None
    return None


def _group_timeout_s() -> float | None:
    """Return the timeout of the default process group in seconds; None: not known."""
    try:
        distributed = sys.modules["torch.distributed"]
        group = distributed.distributed_c10d._get_default_group()
        device = sys.modules["torch"].device("cuda" if "nccl" in distributed.get_backend(group) else "cpu")
        return float(group._get_backend(device).options._timeout.total_seconds())
    except Exception:  # no group, or a torch version with another API: the timeout is not known
        return None


def install() -> None:
    """Count the steps of this process's first optimizer: from now on, or after torch is imported."""
    if PREPARED_ENV in os.environ:
        from ftcore.worker import _prepared

        _prepared.install()
    if "torch" not in sys.modules:
        when_imported("torch", install)
        return
    from torch import autograd
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counter, plain = _StepCounter().stepped, autograd.backward

    handle = register_optimizer_step_post_hook(counter)
    stamped = autograd.backward = _stamped(plain, lambda function: function)
    place = _phase_hooks.install(progress().phases)

    def hide() -> None:
        handle.remove()
        register_optimizer_step_post_hook(hidden(counter))
        place(hidden)
        if autograd.backward is stamped:  # else the script has replaced it
            # below=False: a compiled autograd below it stays compiled.
            autograd.backward = hidden(_stamped(plain, hidden), below=False)

    _rate.install()
    _groups.install()
    _section_hooks.install()
    when_imported("torch.distributed.distributed_c10d", _section_hooks.install_distributed)
    when_imported("torch.distributed.checkpoint", _section_hooks.install_checkpoint)
    when_imported("torch._dynamo", _section_hooks.install_compiler)
    if "torch._dynamo" in sys.modules:
        hide()
    else:  # nothing is traced before the script imports it; the import takes a second, so it is not forced
        when_imported("torch._dynamo", hide)


def _stamped(plain: Any, hide: Callable[[Any], Any]) -> Any:
    """Wrap ``torch.autograd.backward`` to record the beginning and the end of each pass."""
    active = hide(progress().active)
    marks = _phase_hooks.PassMarks(progress().phases, hide)
    begins, ends, failed = hide(marks.begins), hide(marks.ends), hide(_groups.note_failure)

    @functools.wraps(plain)
    def backward(*args: Any, **kwargs: Any) -> None:
        began = time.monotonic_ns()
        active(began)
        begins(began, args[0] if args else kwargs.get("tensors", ()))
        try:
            plain(*args, **kwargs)
        except Exception as error:
            failed(error)
            raise
        finally:
            ended = time.monotonic_ns()
            active(ended)
            ends(ended)

    return backward


def ended() -> None:
    """Record that the script has finished, before its process ends."""
    progress().ended()
