"""Recognises the steps of ``torch.distributed.checkpoint``, which give an optimizer its state; they are no training."""

import sys
from types import FrameType
from typing import Final

STATE_DICT: Final = "torch.distributed.checkpoint.state_dict"
CALLERS: Final = 12
"""Frames between a hook and what has called the optimizer's step, at most: its own and those of wrappers."""


def makes_empty_state() -> bool:
    """Whether ``torch.distributed.checkpoint`` steps an optimizer to give it a state."""
    if STATE_DICT not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(2)
    for _ in range(CALLERS):
        if frame is None:
            break
        if frame.f_code.co_name == "_init_optim_state" and frame.f_globals.get("__name__") == STATE_DICT:
            return True
        frame = frame.f_back
    return False
