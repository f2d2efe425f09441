"""The process groups of this process: they are observed, ended from any thread, and made again in the next round.

A collective of gloo ends when its connections are shut down (``_connections``). A rank with groups of NCCL does not
stay: its device goes on with what an aborted collective has left, so that the state of the last step is not known to be
good.

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
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from ftcore.shm.rounds import ROUNDS_FD_ENV
from ftcore.worker import _connections

_FAILED: Final = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|socket (closed|timeout|error)|broken pipe|timed out waiting \d+ms",
    re.IGNORECASE,
)
"""Errors of collectives that have no class of their own."""

_FROM_ENVIRONMENT: Final = (None, "", "env://")


class _KnownGroups:
    """What is known of the groups and models of this process.

    Attributes:
        builds: a function that runs again in each round is running.
        default: the arguments with which the script made its default group; None: it has not, or not from the
            environment.
        outside: groups that cannot be made again.
        models: DDP models, and whether they are built in each round.
        kept: the group of each reducer and logger.
        left: groups of the round that was left, until those of the next one are made.
        failed: a collective of this step has failed.
    """

    def __init__(self) -> None:
        self.builds = False
        self.default: dict[str, Any] | None = None
        self.outside = 0
        self.models: list[tuple[weakref.ref[Any], bool]] = []
        self.kept: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
        self.left: list[Any] = []
        self.failed = False

    def living(self, built: bool) -> list[Any]:
        """The living DDP models that are built in each round, or the others."""
        self.models = [each for each in self.models if each[0]() is not None]
        return [model for ref, by in self.models if by is built and (model := ref()) is not None]


_seen = _KnownGroups()


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
    if ROUNDS_FD_ENV not in os.environ:
        return  # this process belongs to one round
    c10d._new_process_group_helper = _records_sockets(c10d._new_process_group_helper)
    replaced: Any = distributed
    c10d.init_process_group = replaced.init_process_group = _records_arguments(c10d.init_process_group)
    c10d.destroy_process_group = replaced.destroy_process_group = _forgets_sockets(c10d.destroy_process_group)


def _keeps_group(plain: Any) -> Any:
    @functools.wraps(plain)
    def wrapper(model: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(model, *args, **kwargs)
        if all(ref() is not model for ref, _ in _seen.models):
            _seen.models.append((weakref.ref(model), _seen.builds))
        # Both own the C++ reducer. Their finalizers run after their C++ part is destroyed.
        for owner in (getattr(model, "reducer", None), getattr(model, "logger", None)):
            if owner is not None:
                _keep(owner, model.process_group)
        return result

    return wrapper


def _keep(owner: Any, group: Any) -> None:
    """Keep a group until its owner is destroyed or has another one."""
    if owner in _seen.kept:
        _seen.kept[owner][:] = [group]
        return
    _seen.kept[owner] = held = [group]
    weakref.finalize(owner, _drop, held).atexit = False


def _drop(_held: list[Any]) -> None:
    """Do nothing: the finalizer keeps the group in its argument until this call."""


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
        given = {**dict(zip(("size", "rank", "global_ranks_in_group", "backend"), args, strict=False)), **kwargs}
        backend = str(given.get("backend")).lower()
        records = "gloo" in backend or "undefined" in backend
        try:
            with _connections.recorded() if records else contextlib.nullcontext():
                return plain(*args, **kwargs)
        finally:
            if not _seen.builds and given.get("global_ranks_in_group"):  # the default group is made for an empty list
                _seen.outside += 1

    return new_process_group_helper


def _forgets_sockets(plain: Any) -> Any:
    @functools.wraps(plain)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        try:
            return plain(*args, **kwargs)
        finally:
            _connections.forget_closed()

    return destroy_process_group


@contextlib.contextmanager
def made_again() -> Iterator[None]:
    """Groups and models that are made in this context are made again in each round, or do not outlive it."""
    before, _seen.builds = _seen.builds, True
    try:
        yield
    finally:
        _seen.builds = before


def is_building() -> bool:
    """Whether what is made now is made again in each round."""
    return _seen.builds


def can_retry() -> bool:
    """Whether the communication of this process can be set up again while all ranks stay."""
    outside = _seen.living(built=False)
    updates = all(hasattr(each, "_update_process_group") and not getattr(each, "_comm_hooks", ()) for each in outside)
    return not _seen.outside and updates and not _uses_devices()


def can_park() -> bool:
    """Whether that holds as well if a rank is a new process: it makes all that the others make, in the same order."""
    return can_retry() and not _seen.living(built=False)


def _uses_devices() -> bool:
    """Whether a group communicates between devices."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    backends = torch.distributed.distributed_c10d._world.pg_map.values()
    return bool(torch.cuda.is_available()) and any(str(backend[0]).lower() != "gloo" for backend in backends)


def build(functions: list[Callable[[], object]]) -> None:
    """Call functions that make groups and models of a round."""
    with made_again():
        for function in functions:
            function()


def leave() -> None:
    """Destroy all groups; those that others still refer to are useless from now on."""
    _connections.shut_down()
    distributed: Any = sys.modules.get("torch.distributed")
    world = getattr(getattr(distributed, "distributed_c10d", None), "_world", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        _seen.left += list(getattr(world, "pg_map", ()))
        with contextlib.suppress(Exception):
            distributed.destroy_process_group()
    if world is not None:
        world.group_count = 0  # a group that could not be made has counted: names would differ between ranks
    _connections.forget()


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
        for name in ("reducer", "logger", "process_group"):
            model.__dict__.pop(name, None)
    build(functions)
    # The end of a group joins its threads, and one of them may still be inside of a collective: not in this thread.
    # The variables of the script refer to the new groups by now.
    left, _seen.left = _seen.left, []
    threading.Thread(target=left.clear, name="ftcore-left", daemon=True).start()


def note_failure(error: BaseException) -> None:
    """Remember an error of a backward pass or a wait for other ranks: the script may handle it, and go on."""
    if not _seen.failed and is_failure(error):
        _seen.failed = True


def begin_step() -> None:
    """Forget the failures of the step before."""
    _seen.failed = False


def has_failed() -> bool:
    """Whether a collective of this step has failed, also if the script has handled the error: then an optimizer's step
    may have used gradients that differ between ranks.
    """
    return _seen.failed


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
