"""The entry point of torchrun's plugin; imports nothing until a handler is made."""

from typing import Any


def handlers() -> Any:
    """The entry point: torchrun calls it without arguments, for what makes a handler from ``RendezvousParameters``."""
    return create_handler


def create_handler(params: Any) -> Any:
    """Make the handler of one torchrun. Ends the process with a message if the parameters cannot be used."""
    from ftcore.rdzv_etcd.handler import make

    return make(params)
