"""Begins the sections of plain scripts: the set-up of process groups, checkpoints, evaluations, compilation.

| section | begins and ends with |
|---|---|
| set-up | ``torch.distributed.init_process_group`` and ``new_group`` |
| checkpoint | ``torch.save`` and ``torch.distributed.checkpoint.save`` |
| evaluation | ``Module.eval()``, until the next backward pass, optimizer step or report; not before the first step |
| compile | a compilation of ``torch.compile`` |

An optimizer that is created says that steps are expected. House rule: a wrapper calls the wrapped function even if the
page cannot be written.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from ftcore.shm.sections import CHECKPOINT, COMPILE, SETUP
from ftcore.worker import _recorder
from ftcore.worker._sections import sections


def install() -> None:
    """Recognise the sections of this process. Torch must be imported."""
    import torch

    if sections().words is None:
        return
    torch.save = torch.serialization.save = _within(CHECKPOINT, torch.serialization.save)
    torch.nn.Module.eval = _evaluates(torch.nn.Module.eval, lambda function: function)
    optimizer = torch.optim.Optimizer
    optimizer.__init__ = _after(optimizer.__init__, _trains)


def install_distributed() -> None:
    """Recognise the set-up of process groups, right after ``torch.distributed.distributed_c10d`` was imported."""
    if sections().words is None:
        return
    c10d = sys.modules["torch.distributed.distributed_c10d"]
    for name in ("init_process_group", "new_group"):
        within = _within(SETUP, getattr(c10d, name))
        if name == "init_process_group":
            within = _after(within, _recorder.start)
        for module in (c10d, sys.modules.get("torch.distributed")):
            if module is not None and hasattr(module, name):
                setattr(module, name, within)


def install_checkpoint() -> None:
    """Recognise checkpoints, right after ``torch.distributed.checkpoint`` was imported."""
    if sections().words is None:
        return
    for name in ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver"):
        module = sys.modules.get(name)
        if module is not None:
            module.save = _within(CHECKPOINT, module.save)  # type: ignore[attr-defined]


def install_compiler() -> None:
    """Recognise compilations, and hide the other hooks from the compiler, right after it was imported."""
    if sections().words is None:
        return
    import torch
    from torch._dynamo import on_compile_end, on_compile_start
    from torch.compiler import disable

    module = torch.nn.Module
    module.eval = _evaluates(getattr(module.eval, "__wrapped__", module.eval), disable)
    begun: list[Any] = []

    def begins(*_args: Any) -> None:
        begun.append(sections().begin(COMPILE))

    def ends(*_args: Any) -> None:
        if begun:
            sections().end(begun.pop())

    on_compile_start(begins)
    on_compile_end(ends)


def _within(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begun = sections().begin(name)
        try:
            return plain(*args, **kwargs)
        finally:
            sections().end(begun)

    return wrapper


def _after(plain: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        then()
        return result

    return wrapper


def _evaluates(plain: Callable[..., Any], hide: Callable[[Any], Any]) -> Callable[..., Any]:
    evaluates = hide(sections().evaluates)

    @functools.wraps(plain)
    def wrapper(module: Any) -> Any:
        evaluates()
        return plain(module)

    return wrapper


def _trains() -> None:
    words = sections().words
    if words is not None:
        words.trains()
