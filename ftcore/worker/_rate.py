"""Scales the learning rate in the steps of all optimizers, by the factor of the round (``rate.lowered``).

The rate is scaled before a step and restored after it. So schedulers, checkpoints and the script see the rate that the
script has set, and the factor holds whatever they do with it.

House rules: without a factor, no hook is registered. ``torch.compile`` must not trace the hooks.
"""

import sys
from collections.abc import Callable
from typing import Any

from ftcore.worker import _environment
from ftcore.worker._hidden import hidden
from ftcore.worker._imports import when_imported


class RateScale:
    """The factor, and the rates of the optimizer that is stepping.

    Attributes:
        factor: factor for the learning rate.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._stepping: Any = None
        self._rates: list[Any] = []

    def begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer begins its step; see torch's ``register_optimizer_step_pre_hook``."""
        if self._stepping is optimizer:
            self.ended(optimizer, args, kwargs)  # its last step raised an error
        if self._stepping is not None or self.factor == 1.0:
            return  # inside of another optimizer's step, whose groups it may share
        self._stepping, self._rates = optimizer, []
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if hasattr(rate, "detach"):  # the same tensor stays: a captured graph refers to it
                self._rates.append(rate.detach().clone())
                rate.detach().mul_(self.factor)
            elif isinstance(rate, float | int):
                self._rates.append(rate)
                group["lr"] = rate * self.factor
            else:
                self._rates.append(None)

    def ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped; see torch's ``register_optimizer_step_post_hook``."""
        if self._stepping is not optimizer:
            return
        self._stepping = None
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            if hasattr(rate, "detach"):
                group["lr"].detach().copy_(rate)
            elif rate is not None:
                group["lr"] = rate

    def forget(self) -> None:
        """Forget a step that was not completed: the rates come back with the state."""
        self._stepping = None


_scale = RateScale()
_hooked = False


def install() -> None:
    """Take over the factor of this round. Torch must be imported."""
    global _hooked
    _scale.forget()
    _scale.factor = _environment.lr_factor()
    if _scale.factor == 1.0 or _hooked:
        return
    _hooked = True
    if "torch._dynamo" in sys.modules:
        _register(hidden)
        return
    handles = _register(lambda function: function)

    def hide() -> None:
        for handle in handles:
            handle.remove()
        _register(hidden)

    when_imported("torch._dynamo", hide)


def _register(wrap: Callable[[Any], Any]) -> tuple[Any, ...]:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    pre, post = register_optimizer_step_pre_hook, register_optimizer_step_post_hook
    return pre(wrap(_scale.begins)), post(wrap(_scale.ended))
