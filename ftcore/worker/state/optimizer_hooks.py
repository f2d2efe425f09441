"""Hooks around the steps of all optimizers."""

from typing import Any, Protocol

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ftcore.worker._hidden import hidden
from ftcore.worker._imports import when_imported


class StepObserver(Protocol):
    """What is called around each step of an optimizer."""

    def before_step(self) -> None:
        """An optimizer is about to change the state."""

    def after_step(self) -> None:
        """It has."""


def hook(observer: StepObserver) -> None:
    """Install the hooks of all optimizers; ``torch.compile`` does not trace them."""

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        observer.before_step()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        observer.after_step()

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def hide() -> None:
        for handle in handles:
            handle.remove()
        register_optimizer_step_pre_hook(hidden(before))
        register_optimizer_step_post_hook(hidden(after))

    when_imported("torch._dynamo", hide)
