"""Data exchanges: among the devices of one node, and with the devices of other nodes.

The same on CPU (gloo) and GPU (NCCL). The data of every rank is known in advance, so received data is compared bit by
bit. A node that cannot take part says so at the store, so that the others do not wait for it.
"""

import datetime
import importlib
import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.runtime.checks import link
from ftcore.runtime.checks.protocol import ALL_TO_ALL, INSIDE_FD, CheckReport, DeviceSpec, exchange_of, text

BYTES: Final = {"cpu": 1 << 20, "cuda": 64 << 20}
"""Bytes that one rank sends to another at a time."""

TIMES: Final = 5

_ABSENT: Final = "0"


def within_node(torch: Any, spec: DeviceSpec, kind: str, device: Any) -> CheckReport:
    """All-to-all among the devices of this node, with their own store; needs no other node."""
    found = _backend(kind)
    if isinstance(found, str):
        return CheckReport(name=ALL_TO_ALL, verdict="unavailable", detail=found)
    dist, backend = found
    limit = datetime.timedelta(seconds=spec.inside_s)
    try:
        store = dist.FileStore(f"/proc/self/fd/{INSIDE_FD}", spec.devices)
        store.set_timeout(limit)
        store.set(f"fit/{spec.device}", "1")
        store.wait([f"fit/{other}" for other in range(spec.devices)], limit)
    except Exception as error:
        return CheckReport(name=ALL_TO_ALL, verdict="unavailable", detail=f"not all devices joined: {text(error)}")
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("inside", store),
            rank=spec.device,
            world_size=spec.devices,
            timeout=limit,
        )
        seconds, wrong = _all_to_all(torch, dist, kind, device, spec.device, spec.devices)
        dist.destroy_process_group()
    except Exception as error:
        return CheckReport(name=ALL_TO_ALL, verdict="failed", detail=f"among the {spec.devices} devices: {text(error)}")
    if wrong:
        return CheckReport(name=ALL_TO_ALL, verdict="wrong", detail=f"among the {spec.devices} devices: {wrong}")
    return CheckReport(name=ALL_TO_ALL, verdict="passed", values=_rate(spec.devices, kind, seconds), seconds=seconds)


def across_nodes(torch: Any, spec: DeviceSpec, kind: str, device: Any, emit: Callable[[CheckReport], None]) -> None:
    """Join the group and exchange data with all its devices; in a pair, measure TCP first. Reports each result."""
    name = exchange_of(spec.label)
    found = _backend(kind)
    if isinstance(found, str):
        emit(CheckReport(name=name, verdict="unavailable", detail=found))
        return
    dist, backend = found
    among = "-".join(spec.group)
    try:
        limit = datetime.timedelta(seconds=spec.within_s)
        store = _store(dist, spec)
        if spec.device == 0:
            store.set(f"devices/{spec.node}", str(spec.devices))
        counts = {node: int(store.get(f"devices/{node}")) for node in spec.group}
        absent = [node for node, count in counts.items() if not count]
        if absent:
            raise RuntimeError(f"{', '.join(absent)} cannot take part")
        if spec.device == 0 and not spec.label:
            emit(link.measure(store, spec))
        first = sum(counts[node] for node in spec.group[: spec.group.index(spec.node)])
        rank, size = first + spec.device, sum(counts.values())
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        seconds, wrong = (_reduce if spec.label else _gather)(torch, dist, kind, device, rank, size)
    except Exception as error:
        emit(CheckReport(name=name, verdict="failed", detail=f"with {among}: {text(error)}"))
        return
    if wrong:
        emit(CheckReport(name=name, verdict="failed", detail=f"with {among}: {wrong}"))
        return
    emit(CheckReport(name=name, verdict="passed", values=_rate(size, kind, seconds, spec.label), seconds=seconds))


def decline(spec: DeviceSpec) -> None:
    """Tell the group that this node does not take part, because its device 0 failed."""
    try:
        dist: Any = importlib.import_module("torch.distributed")
        _store(dist, spec).set(f"devices/{spec.node}", _ABSENT)
    except Exception:
        return  # the others wait until their timeout


def _backend(kind: str) -> tuple[Any, str] | str:
    """``torch.distributed`` and the name of the backend; or why it is unavailable."""
    dist: Any = importlib.import_module("torch.distributed")
    backend = "nccl" if kind == "cuda" else "gloo"
    if not dist.is_available() or (backend == "nccl" and not dist.is_nccl_available()):
        return f"this build of torch has no {backend}"
    return dist, backend


def _store(dist: Any, spec: DeviceSpec) -> Any:
    host, _, port = spec.store.rpartition(":")
    limit = datetime.timedelta(seconds=spec.within_s)
    return dist.PrefixStore(spec.prefix, dist.TCPStore(host.strip("[]"), int(port), is_master=False, timeout=limit))


def _rate(size: int, kind: str, seconds: float, summed: str = "") -> dict[str, float]:
    """The minimal send rate of each rank; a ring all-reduce sends about twice the data, of 8-byte integers."""
    sent = 4 * (size - 1) / size if summed else size - 1
    return {"bandwidth_GBps": round(TIMES * sent * BYTES[kind] / max(seconds, 1e-9) / 1e9, 3)}


def _pattern(torch: Any, kind: str, device: Any) -> Any:
    return torch.arange(BYTES[kind] // 4, dtype=torch.int32, device=device) % 9973


def _timed(torch: Any, kind: str, do: Callable[[], Any]) -> float:
    wait(torch, kind)
    begun = time.perf_counter()
    for _ in range(TIMES):
        do()
    wait(torch, kind)
    return time.perf_counter() - begun


def _all_to_all(torch: Any, dist: Any, kind: str, device: Any, rank: int, size: int) -> tuple[float, str]:
    """All-to-all of distinct data; returns the duration in seconds and the error, if any."""
    pattern = _pattern(torch, kind, device)
    mine = torch.cat([pattern * (rank * size + other + 1) for other in range(size)])
    received = torch.zeros_like(mine)
    dist.all_to_all_single(received, mine)  # the first call makes the connections
    received.zero_()
    seconds = _timed(torch, kind, lambda: dist.all_to_all_single(received, mine))
    parts = received.chunk(size)
    wrong = [str(o) for o, part in enumerate(parts) if not torch.equal(part, pattern * (o * size + rank + 1))]
    dist.barrier()  # no rank may end before the others have received
    return seconds, f"device {rank} received wrong data from devices {', '.join(wrong)}" if wrong else ""


def _gather(torch: Any, dist: Any, kind: str, device: Any, rank: int, size: int) -> tuple[float, str]:
    """All-gather of distinct data; returns the duration in seconds and the error, if any."""
    pattern = _pattern(torch, kind, device)
    mine = pattern * (rank + 1)
    parts = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    for part in parts:
        part.zero_()
    seconds = _timed(torch, kind, lambda: dist.all_gather(parts, mine))
    wrong = [str(other) for other, part in enumerate(parts) if not torch.equal(part, pattern * (other + 1))]
    dist.barrier()
    return seconds, f"received wrong data from ranks {', '.join(wrong)}" if wrong else ""


def _reduce(torch: Any, dist: Any, kind: str, device: Any, rank: int, size: int) -> tuple[float, str]:
    """All-reduce of distinct data; returns the duration in seconds and the error, if any."""
    pattern = _pattern(torch, kind, device).to(torch.int64)
    total = pattern * (rank + 1)
    dist.all_reduce(total)
    wrong = "" if torch.equal(total, pattern * (size * (size + 1) // 2)) else "the sum over all ranks is wrong"
    seconds = _timed(torch, kind, lambda: dist.all_reduce(total.copy_(pattern)))
    if not wrong and not torch.equal(total, pattern * size):
        wrong = "the sum over all ranks is wrong"
    dist.barrier()
    return seconds, wrong


def wait(torch: Any, kind: str) -> None:
    """Wait until the device has finished its work."""
    if kind == "cuda":
        torch.cuda.synchronize()
