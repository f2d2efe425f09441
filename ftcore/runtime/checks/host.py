"""What is checked of a host beside its devices: a table of named checks, each a function with a time budget.

A check returns ``Said`` without its name: ``passed``, ``failed`` (the node must not train), ``warned`` (somebody should
look) or ``unavailable`` with the reason. Packages bring their own by the entry point group ``ftcore.checks``: a
function that takes ``Context`` and returns ``Said``, or a mapping with its fields; ``budget_s`` may be set on it.
"""

import os
import platform
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import msgspec

from ftcore.runtime.checks import nvml, xid
from ftcore.runtime.checks.protocol import GROUP, Context, HostSpec, Said

Check: TypeAlias = Callable[[Context], Said]

BUDGET_S: Final = 20.0
"""For a check that does not say how long it takes."""

DISK_BYTES: Final = 4 << 20
DISK_FREE_LEAST: Final = 1 << 30
SHM_LEAST: Final = 64 << 20
LOOPBACK_BYTES: Final = 64 << 20
LIBRARIES: Final = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def configuration(context: Context) -> Said:
    """What should be equal on all nodes: devices, driver, versions of libraries."""
    facts = {"python": platform.python_version(), "accelerators": str(context.devices)}
    for name in LIBRARIES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return Said(verdict="passed", facts={**facts, **nvml.facts()})


def disk(context: Context) -> Said:
    """Write, sync and read back in the directory of the job's logs."""
    path = Path(context.log_dir) / f".ftcore-check-{context.node}-{os.getpid()}"
    data = os.urandom(1 << 16) * (DISK_BYTES >> 16)
    begun = time.perf_counter()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "r+b") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                back = file.read()
        finally:
            path.unlink()
        free = shutil.disk_usage(path.parent).free
    except OSError as error:
        return Said(verdict="warned", detail=f"{path.parent}: {error.strerror}")
    values = {"seconds": round(time.perf_counter() - begun, 4), "free_GB": round(free / 1e9, 2)}
    if back != data:
        return Said(verdict="failed", detail=f"{path.parent}: what was read is not what was written", values=values)
    if free < DISK_FREE_LEAST:
        return Said(verdict="warned", detail=f"{path.parent}: {free >> 20} MiB free", values=values)
    return Said(verdict="passed", values=values)


def shared_memory(context: Context) -> Said:
    """Size and free space of /dev/shm, which data loaders and NCCL use."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return Said(verdict="unavailable", detail=f"/dev/shm: {error.strerror}")
    values = {"total_GB": round(usage.total / 1e9, 3), "free_GB": round(usage.free / 1e9, 3)}
    if usage.free < SHM_LEAST:
        return Said(verdict="warned", detail=f"/dev/shm: {usage.free >> 20} MiB free", values=values)
    return Said(verdict="passed", values=values)


def nic(context: Context) -> Said:
    """A TCP connection from this node's own address to itself: the address is this node's, and carries data."""
    host = context.address or "127.0.0.1"
    try:
        family, _, _, _, at = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.create_server(at[:2], family=family) as server:
            return _loop(server, family)
    except OSError as error:
        return Said(verdict="warned", detail=f"{host}: {error.strerror or error}")


def _loop(server: socket.socket, family: int) -> Said:
    def send() -> None:
        with socket.create_connection(server.getsockname()[:2], timeout=BUDGET_S) as out:
            chunk = bytes(1 << 20)
            for _ in range(LOOPBACK_BYTES >> 20):
                out.sendall(chunk)

    sender = threading.Thread(target=send, daemon=True)
    begun, got = time.perf_counter(), 0
    sender.start()
    server.settimeout(BUDGET_S)
    peer, _ = server.accept()
    with peer:
        while data := peer.recv(1 << 20):
            got += len(data)
    seconds = time.perf_counter() - begun
    return Said(verdict="passed", values={"loopback_GBps": round(got / seconds / 1e9, 3)})


@attrs.frozen
class Known:
    """A check of the table.

    Args:
        check: what is called.
        budget_s: seconds that it may take.
    """

    check: Check
    budget_s: float


BUILT_IN: Mapping[str, Known] = {
    "configuration": Known(configuration, 20.0),
    "disk": Known(disk, 20.0),
    "shared-memory": Known(shared_memory, 5.0),
    "nvml": Known(nvml.check, 20.0),
    "xid": Known(xid.check, 5.0),
    "nic": Known(nic, 20.0),
}
"""ftcore's own, in the order in which they are made."""


def names() -> tuple[str, ...]:
    """The checks that are made on this host: ftcore's own, then those of installed packages."""
    others = sorted({entry.name for entry in entry_points(group=GROUP)} - set(BUILT_IN))
    return (*BUILT_IN, *others)


def check(spec: HostSpec, say: Callable[[Said], None]) -> None:
    """Make the checks that the spec names, one after the other."""
    for name in spec.names:
        try:
            known = BUILT_IN[name] if name in BUILT_IN else _load(name)
        except (Exception, SystemExit) as error:
            said = Said(verdict="unavailable", detail=f"it cannot be loaded: {type(error).__name__}: {error}")
            say(attrs.evolve(said, name=name))
            continue
        say(Said(begun=name, budget_s=known.budget_s))
        say(attrs.evolve(_made(known, spec.context), name=name))


def _load(name: str) -> Known:
    found: list[EntryPoint] = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        raise LookupError(f"no installed package offers it in {GROUP}")
    check: Any = found[0].load()
    return Known(check, float(getattr(check, "budget_s", BUDGET_S)))


def _made(known: Known, context: Context) -> Said:
    try:
        found: Any = known.check(context)
        said = found if isinstance(found, Said) else msgspec.convert(found, Said)
    except (Exception, SystemExit) as error:
        return Said(verdict="unavailable", detail=f"it raised {type(error).__name__}: {error}")
    if said.verdict not in ("passed", "failed", "warned", "unavailable"):
        return Said(verdict="unavailable", detail=f"it answered {said.verdict!r}")
    return attrs.evolve(said, begun="")
