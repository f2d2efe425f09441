"""Checks of a host beside its devices: a table of named checks, each a function with a timeout.

A check returns ``CheckReport`` without its name, with the verdict ``passed``, ``failed`` (the node must not train),
``warned`` (an operator should look) or ``unavailable`` (with the reason). Packages add checks by the entry point group
``ftcore.checks``: a function that takes ``Context`` and returns ``CheckReport`` or a mapping with its fields. Its
attribute ``budget_s`` sets the timeout.
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
from ftcore.runtime.checks.protocol import GROUP, CheckReport, Context, HostSpec

Check: TypeAlias = Callable[[Context], CheckReport]

BUDGET_S: Final = 20.0
"""Timeout in seconds of a check without ``budget_s``."""

DISK_BYTES: Final = 4 << 20
DISK_FREE_LEAST: Final = 1 << 30
SHM_LEAST: Final = 64 << 20
LOOPBACK_BYTES: Final = 64 << 20
LIBRARIES: Final = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")


def configuration(context: Context) -> CheckReport:
    """Values that should be equal on all nodes: devices, driver, versions of libraries."""
    facts = {"python": platform.python_version(), "accelerators": str(context.devices)}
    for name in LIBRARIES:
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            continue
    return CheckReport(verdict="passed", facts={**facts, **nvml.facts()})


def disk(context: Context) -> CheckReport:
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
        return CheckReport(verdict="warned", detail=f"{path.parent}: {error.strerror}")
    values = {"seconds": round(time.perf_counter() - begun, 4), "free_GB": round(free / 1e9, 2)}
    if back != data:
        return CheckReport(verdict="failed", detail=f"{path.parent}: read back other data than written", values=values)
    if free < DISK_FREE_LEAST:
        return CheckReport(verdict="warned", detail=f"{path.parent}: {free >> 20} MiB free", values=values)
    return CheckReport(verdict="passed", values=values)


def shared_memory(context: Context) -> CheckReport:
    """Size and free space of /dev/shm, which data loaders and NCCL use."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return CheckReport(verdict="unavailable", detail=f"/dev/shm: {error.strerror}")
    values = {"total_GB": round(usage.total / 1e9, 3), "free_GB": round(usage.free / 1e9, 3)}
    if usage.free < SHM_LEAST:
        return CheckReport(verdict="warned", detail=f"/dev/shm: {usage.free >> 20} MiB free", values=values)
    return CheckReport(verdict="passed", values=values)


def nic(context: Context) -> CheckReport:
    """A TCP connection from this node's own address to itself."""
    host = context.address or "127.0.0.1"
    try:
        family, _, _, _, at = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.create_server(at[:2], family=family) as server:
            return _loop(server)
    except OSError as error:
        return CheckReport(verdict="warned", detail=f"{host}: {error.strerror or error}")


def _loop(server: socket.socket) -> CheckReport:
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
    return CheckReport(verdict="passed", values={"loopback_GBps": round(got / seconds / 1e9, 3)})


@attrs.frozen
class HostCheck:
    """A check of the table.

    Args:
        check: the function.
        budget_s: its timeout in seconds.
    """

    check: Check
    budget_s: float


BUILT_IN: Mapping[str, HostCheck] = {
    "configuration": HostCheck(configuration, 20.0),
    "disk": HostCheck(disk, 20.0),
    "shared-memory": HostCheck(shared_memory, 5.0),
    "nvml": HostCheck(nvml.check, 20.0),
    "xid": HostCheck(xid.check, 5.0),
    "nic": HostCheck(nic, 20.0),
}
"""The built-in checks, in order of execution."""


def names() -> tuple[str, ...]:
    """The checks of this host: the built-in ones, then those of installed packages."""
    others = sorted({entry.name for entry in entry_points(group=GROUP)} - set(BUILT_IN))
    return (*BUILT_IN, *others)


def check(spec: HostSpec, emit: Callable[[CheckReport], None]) -> None:
    """Run the checks of the spec, one after the other."""
    for name in spec.names:
        try:
            entry = BUILT_IN[name] if name in BUILT_IN else _load(name)
        except (Exception, SystemExit) as error:
            detail = f"the check cannot be loaded: {type(error).__name__}: {error}"
            emit(CheckReport(name=name, verdict="unavailable", detail=detail))
            continue
        emit(CheckReport(begun=name, budget_s=entry.budget_s))
        emit(attrs.evolve(_run(entry, spec.context), name=name))


def _load(name: str) -> HostCheck:
    found: list[EntryPoint] = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not found:
        raise LookupError(f"no installed package provides it in the entry point group {GROUP}")
    check: Any = found[0].load()
    return HostCheck(check, float(getattr(check, "budget_s", BUDGET_S)))


def _run(entry: HostCheck, context: Context) -> CheckReport:
    try:
        found: Any = entry.check(context)
        report = found if isinstance(found, CheckReport) else msgspec.convert(found, CheckReport)
    except (Exception, SystemExit) as error:
        return CheckReport(verdict="unavailable", detail=f"the check raised {type(error).__name__}: {error}")
    if report.verdict not in ("passed", "failed", "warned", "unavailable"):
        return CheckReport(verdict="unavailable", detail=f"the check returned the unknown verdict {report.verdict!r}")
    return attrs.evolve(report, begun="")
