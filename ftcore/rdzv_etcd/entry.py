"""Entry point of the torchrun plugin; imports nothing until a handler is made."""

from typing import Any


def handlers() -> Any:
    """The entry point: torchrun calls it to get the function that makes a handler from ``RendezvousParameters``."""
    return create_handler


def create_handler(params: Any) -> Any:
    """Make the handler of a torchrun; ends the process with a message if the parameters cannot be used."""
    from ftcore.rdzv_etcd.handler import make

    return make(params)
