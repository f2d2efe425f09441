"""Keep a DDP model's process group until its reducer is destroyed, so that the group is destroyed without the GIL.

Gloo's threads take the GIL when they drop a finished collective of a backward pass: torch 2.13 attaches a Python object
to each. A C++ ``Reducer`` is destroyed with the GIL held. It is the group's last owner once the script has called
``destroy_process_group``; then the group's destructor joins gloo's threads while they wait for the GIL: the script
hangs at its end, or aborts. The group's Python object, in contrast, releases the GIL before it destroys.
"""

import functools
import weakref
from typing import Any


def install() -> None:
    """Protect every DDP model created after this call. Torch must be imported."""
    from torch.nn.parallel import DistributedDataParallel

    for name in ("_ddp_init_helper", "_update_process_group"):
        plain = getattr(DistributedDataParallel, name, None)
        if plain is not None:
            setattr(DistributedDataParallel, name, _keeps_group(plain))


def _keeps_group(plain: Any) -> Any:
    @functools.wraps(plain)
    def wrapper(model: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(model, *args, **kwargs)
        # Both own the C++ reducer. Their finalizers run after their C++ part is destroyed.
        for owner in (getattr(model, "reducer", None), getattr(model, "logger", None)):
            if owner is not None:
                weakref.finalize(owner, _drop, model.process_group).atexit = False
        return result

    return wrapper


def _drop(_group: Any) -> None:
    """Do nothing: the finalizer keeps the group as its argument until this call."""
