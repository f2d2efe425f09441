"""Names of the parameters and buffers of a module, as ``torch.distributed.checkpoint.state_dict`` names them.

The names are those of the module without its wrappers: DDP, FSDP1, ``torch.compile``, activation checkpointing. So a
model has the same names however it is trained. They are found by a walk and not with ``get_model_state_dict``, which
communicates and copies for FSDP1, and returns other tensor objects than the optimizer has.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

WRAPPERS: Final = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Attribute with the wrapped module, by class."""

EXTRA: Final = "_extra_state"


class NamedState(NamedTuple):
    """A parameter, a buffer, or the extra state of a module.

    Args:
        name: its name in the model.
        module: the module that has it.
        kind: ``parameter``, ``buffer`` or ``extra``.
        key: its name in the module.
        tensor: the tensor; None for extra state.
    """

    name: str
    module: Any
    kind: str
    key: str
    tensor: Any


def walk(
    module: Any, owned: Mapping[int, Mapping[str, Any]], prefix: str = "", path: frozenset[int] = frozenset()
) -> Iterator[NamedState]:
    """Yield the state of a module and its children: what ``state_dict`` would have.

    A module that is used in several places is visited once for each, as in ``state_dict``.

    Args:
        module: the module.
        owned: parameters of FSDP1, by the identity of their module, then by key.
        prefix: of the names.
        path: identities of the modules that contain this one.
    """
    wrapped = _wrapped(module)
    if wrapped is not None:
        yield from walk(wrapped, owned, prefix, path)
        return
    if id(module) in path:  # a module that contains itself
        return
    for key, tensor in {**module._parameters, **owned.get(id(module), {})}.items():
        if tensor is not None:
            yield NamedState(prefix + key, module, "parameter", key, tensor)
    for key, tensor in module._buffers.items():
        if tensor is not None and key not in module._non_persistent_buffers_set:
            yield NamedState(prefix + key, module, "buffer", key, tensor)
    if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
        yield NamedState(prefix + EXTRA, module, "extra", EXTRA, None)
    for key, child in module._modules.items():
        if child is not None:
            yield from walk(child, owned, f"{prefix}{key}.", path | {id(module)})


def _wrapped(module: Any) -> Any:
    for kind in type(module).__mro__:
        attribute = WRAPPERS.get(kind.__name__)
        if attribute is not None and hasattr(module, attribute):
            return getattr(module, attribute)
    return None


def reshard(module: Any) -> None:
    """Let FSDP2 show its sharded parameters, which it replaces between a forward without backward and the next pass."""
    for each in module.modules():
        if "FSDPModule" in {kind.__name__ for kind in type(each).__mro__}:
            each.reshard()
