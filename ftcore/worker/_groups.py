"""The process groups of this process: they are observed, ended from any thread, and made again in the next round.

Nothing in torch frees a rank that waits in a collective of gloo. Its sockets are recorded while a group is made, and
are shut down: then the collective fails at once, also if the peer is stopped. Groups of NCCL are aborted.

Which groups can be made again: the default one, if the script made it from the environment; and those that are made in
a function of ``on_round`` (``build``), which runs again in each round. Any other group is held by something that would
go on to use it. DDP models made outside of such functions are given the new default group.

Keeps a DDP model's process group until its reducer is destroyed, so that the group is destroyed without the GIL.
Gloo's threads take the GIL when they drop a finished collective of a backward pass: torch 2.13 attaches a Python object
to each. A C++ ``Reducer`` is destroyed with the GIL held. It is the group's last owner once the script has called
``destroy_process_group``; then the group's destructor joins gloo's threads while they wait for the GIL: the script
hangs at its end, or aborts. The group's Python object, in contrast, releases the GIL before it destroys.

House rules: what is private in torch is used only if it is there; without it, the ranks are restarted.
"""

import contextlib
import functools
import os
import re
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

_FAILED: Final = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket (closed|timeout|error)|broken pipe|timed out waiting \d+ms",
    re.IGNORECASE,
)
"""Errors of collectives that have no class of their own."""

_FROM_ENVIRONMENT: Final = (None, "", "env://")


class _Observed:
    """What is known of the groups and models of this process.

    Attributes:
        builds: a function that runs again in each round is running.
        default: the arguments with which the script made its default group; None: it has not, or not from the
            environment.
        outside: groups that cannot be made again.
        sockets: inodes of gloo's connections.
        models: DDP models, and whether they are built in each round.
    """

    def __init__(self) -> None:
        self.builds = False
        self.default: dict[str, Any] | None = None
        self.outside = 0
        self.sockets: set[str] = set()
        self.models: list[tuple[weakref.ref[Any], bool]] = []

    def living(self, built: bool) -> list[Any]:
        """The living DDP models that are built in each round, or the others."""
        self.models = [each for each in self.models if each[0]() is not None]
        return [model for ref, by in self.models if by is built and (model := ref()) is not None]


_seen = _Observed()


def install() -> None:
    """Observe every group and protect every DDP model that is made after this call. Torch must be imported."""
    from torch.nn.parallel import DistributedDataParallel

    for name in ("_ddp_init_helper", "_update_process_group"):
        plain = getattr(DistributedDataParallel, name, None)
        if plain is not None:
            setattr(DistributedDataParallel, name, _keeps_group(plain))
    distributed = sys.modules.get("torch.distributed")
    c10d = getattr(distributed, "distributed_c10d", None)
    if distributed is None or c10d is None or not hasattr(c10d, "_new_process_group_helper"):
        return
    c10d._new_process_group_helper = _records_sockets(c10d._new_process_group_helper)
    init = _records_arguments(c10d.init_process_group)
    c10d.init_process_group = distributed.init_process_group = init  # type: ignore[attr-defined]


def _keeps_group(plain: Any) -> Any:
    @functools.wraps(plain)
    def wrapper(model: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(model, *args, **kwargs)
        if all(ref() is not model for ref, _ in _seen.models):
            _seen.models.append((weakref.ref(model), _seen.builds))
        # Both own the C++ reducer. Their finalizers run after their C++ part is destroyed.
        for owner in (getattr(model, "reducer", None), getattr(model, "logger", None)):
            if owner is not None:
                weakref.finalize(owner, _drop, model.process_group).atexit = False
        return result

    return wrapper


def _drop(_group: Any) -> None:
    """Do nothing: the finalizer keeps the group as its argument until this call."""


def _records_arguments(plain: Any) -> Any:
    @functools.wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if not _seen.builds:
            names = ("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name", "pg_options")
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            from_environment = given.pop("init_method", None) in _FROM_ENVIRONMENT and given.get("store") is None
            for name in ("world_size", "rank", "store"):
                given.pop(name, None)
            _seen.default = given if from_environment and len(args) <= len(names) else None
            _seen.outside += not from_environment
        return result

    return init_process_group


def _records_sockets(plain: Any) -> Any:
    @functools.wraps(plain)
    def new_process_group_helper(*args: Any, **kwargs: Any) -> Any:
        before = _connections()
        try:
            return plain(*args, **kwargs)
        finally:
            _seen.sockets |= _connections().keys() - before.keys()
            ranks = args[2] if len(args) > 2 else kwargs.get("global_ranks_in_group")
            if not _seen.builds and ranks:  # the default group is made for an empty list
                _seen.outside += 1

    return new_process_group_helper


def _connections() -> dict[str, int]:
    """The sockets of this process: descriptors by inode."""
    found: dict[str, int] = {}
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(each.readlink())
            if target.startswith("socket:"):
                found[target] = int(each.name)
    return found


@contextlib.contextmanager
def made_again() -> Iterator[None]:
    """Groups and models that are made in this context are made again in each round, or do not outlive it."""
    before, _seen.builds = _seen.builds, True
    try:
        yield
    finally:
        _seen.builds = before


def can_retry() -> bool:
    """Whether the communication of this process can be set up again while all ranks stay."""
    updates = all(hasattr(model, "_update_process_group") for model in _seen.living(built=False))
    return not _seen.outside and updates


def can_park() -> bool:
    """Whether that holds as well if a rank is a new process: it makes all that the others make, in the same order."""
    return can_retry() and not _seen.living(built=False)


def build(functions: list[Callable[[], object]]) -> None:
    """Call functions that make groups and models of a round."""
    with made_again():
        for function in functions:
            function()


def shut_down() -> None:
    """End all communication of this process; safe in any thread, also while others are inside of collectives."""
    for inode, descriptor in _connections().items():
        if inode in _seen.sockets or _is_of_store(descriptor):
            _shut(descriptor)
    with contextlib.suppress(Exception):
        distributed: Any = sys.modules["torch.distributed"]
        if "nccl" in str(distributed.get_backend()):
            distributed.distributed_c10d._abort_process_group()


def is_cut() -> bool:
    """Whether a connection of a group has ended."""
    return not _seen.sockets <= _connections().keys()


def _is_of_store(descriptor: int) -> bool:
    """Whether a socket is connected to the store of this round, for whose keys a rank may wait."""
    port = os.environ.get("MASTER_PORT", "")
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as each:
        if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
            return str(each.getpeername()[1]) == port
    return False


def _shut(descriptor: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as each:
        each.getpeername()  # a listening socket has no peer: gloo aborts the process if it cannot accept any more
        each.shutdown(socket.SHUT_RDWR)


def leave() -> None:
    """Destroy all groups; those that others still refer to are useless from now on."""
    shut_down()
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        with contextlib.suppress(Exception):
            distributed.destroy_process_group()
    _seen.sockets.clear()


def enter(functions: list[Callable[[], object]]) -> None:
    """Make the groups and models of a new round, as its environment says.

    Args:
        functions: those given to ``on_round``, in the order of their registration.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if _seen.default is not None:
        distributed.init_process_group(**_seen.default)
        for model in _seen.living(built=False):
            model._update_process_group(distributed.group.WORLD)
    for model in _seen.living(built=True):
        # Their hooks on parameters end with them, and must not count beside those of the models that follow.
        for name in ("reducer", "logger"):
            model.__dict__.pop(name, None)
    build(functions)


def is_failure(error: BaseException) -> bool:
    """Whether an error of a step is a failed collective."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None:
        return False
    seen: BaseException | None = error
    while seen is not None:
        kind = getattr(distributed, "DistError", None)
        if kind is not None and isinstance(seen, kind):
            return True
        if type(seen) is RuntimeError and _FAILED.search(str(seen)):
            return True
        seen = seen.__cause__
    return False
