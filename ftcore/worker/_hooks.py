"""Progress of plain scripts: torch's public global optimizer hook counts completed steps into the page.

How long a rank works by itself is the step without its backward passes: there ranks wait for each other. So the
beginning and the end of each pass are stamped, by a wrapper around ``torch.autograd.backward``, for which there is no
hook.

House rules: a hook of ours never raises into the training step and costs a few microseconds. ``torch.compile`` traces
none of them: traced, they break graphs and warn on every rank. Only the first optimizer seen is counted, so that a
script with two of them (a GAN) does not step twice as fast. The Adam family keeps its step number in its state and
saves it in checkpoints: it is read once, so a resumed run counts on; it is never read from a device, which would have
to wait for it. Steps of the others, and backward passes, are signs of progress all the same.
"""

import functools
import sys
import time
import weakref
from typing import Any

from ftcore.worker import _groups
from ftcore.worker._progress import progress


class _StepCounter:
    def __init__(self) -> None:
        self._progress = progress()
        self._first: weakref.ref[Any] | None = None

    def __call__(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._first is None or self._first() is None:
            self._first = weakref.ref(optimizer)
            step = _step_in_state(optimizer)
            if step is not None:
                self._progress.resumed_at(step - 1)
            timeout_s = _group_timeout_s()
            if timeout_s is not None:
                self._progress.times_out(timeout_s)
        elif self._first() is not optimizer:
            self._progress.active(time.monotonic_ns())
            return
        self._progress.stepped()


def _step_in_state(optimizer: Any) -> int | None:
    try:
        for state in optimizer.state.values():
            step = state.get("step")
            if step is None or (hasattr(step, "device") and step.device.type != "cpu"):
                return None
            return int(step)
    except Exception:  # a foreign optimizer may keep anything there; counting from the start is still right
        return None
    return None


def _group_timeout_s() -> float | None:
    """The timeout of the default process group, as the script or torch has set it; None if that is not known."""
    try:
        distributed = sys.modules["torch.distributed"]
        group = distributed.distributed_c10d._get_default_group()
        device = sys.modules["torch"].device("cuda" if "nccl" in distributed.get_backend(group) else "cpu")
        return float(group._get_backend(device).options._timeout.total_seconds())
    except Exception:  # no group, or a torch whose group says it otherwise: then its collectives have no known timeout
        return None


def install() -> None:
    """Count the steps of this process's first optimizer. Does nothing if torch is not loaded yet."""
    if "torch" not in sys.modules:
        return
    from torch.compiler import disable
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(disable(_StepCounter()))
    _stamp_backward()
    _groups.install()


def _stamp_backward() -> None:
    from torch import autograd
    from torch.compiler import disable

    plain, page = autograd.backward, progress()
    active, waited = disable(page.active), disable(page.waited)

    @functools.wraps(plain)
    def backward(*args: Any, **kwargs: Any) -> None:
        began = time.monotonic_ns()
        active(began)
        try:
            plain(*args, **kwargs)
        finally:
            ended = time.monotonic_ns()
            active(ended)
            waited(ended - began)

    autograd.backward = disable(backward, recursive=False)  # a compiled autograd below it stays one


def ended() -> None:
    """The script came to its end; what is left is the end of its process."""
    progress().ended()
