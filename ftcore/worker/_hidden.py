"""Hides functions of ours from ``torch.compile`` at no cost per call.

``torch.compiler.disable`` wraps a function, and each call then costs one to three microseconds. The compiler also has a
mark on a function's code: it is neither traced nor inlined. The mark is no public API; without it, the wrapper is used.
"""

from types import FunctionType, MethodType
from typing import Any


def hidden(function: Any, *, below: bool = True) -> Any:
    """Hide a function. ``torch._dynamo`` must be imported.

    Args:
        function: a function or method of ours.
        below: hide what it calls as well.

    Returns:
        The function itself, or a wrapper of it.
    """
    from torch.compiler import disable

    plain = function.__func__ if isinstance(function, MethodType) else function
    try:
        from torch._C._dynamo.eval_frame import set_code_exec_strategy
        from torch._dynamo.types import FrameAction, FrameExecStrategy

        if not isinstance(plain, FunctionType):
            raise TypeError(f"{plain!r} has no code")
        action = FrameAction.SKIP if below else FrameAction.DEFAULT
        set_code_exec_strategy(plain.__code__, FrameExecStrategy(FrameAction.SKIP, action))
        plain._torchdynamo_disable = True  # type: ignore[attr-defined]
    except Exception:  # another torch
        return disable(function) if below else disable(function, recursive=False)
    return function
