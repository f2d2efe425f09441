"""Exchanges of data: among the devices of one node, and with the devices of other nodes.

The same on CPU (gloo) and GPU (NCCL). What every rank sends is known beforehand, so what arrives is compared to the
last bit. Who can take no part says so at the store, and nobody waits for it in vain.
"""

import datetime
import importlib
import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.runtime.checks import link
from ftcore.runtime.checks.protocol import ALL_TO_ALL, INSIDE_FD, DeviceSpec, Said, exchange_of, text

BYTES: Final = {"cpu": 1 << 20, "cuda": 64 << 20}
"""What one rank sends to another at a time."""

TIMES: Final = 5

_ABSENT: Final = "0"


def inside(torch: Any, spec: DeviceSpec, kind: str, device: Any) -> Said:
    """All-to-all among the devices of this node, at a store of their own; no other node is needed for it."""
    found = _backend(kind)
    if isinstance(found, str):
        return Said(name=ALL_TO_ALL, verdict="unavailable", detail=found)
    dist, backend = found
    limit = datetime.timedelta(seconds=spec.inside_s)
    try:
        store = dist.FileStore(f"/proc/self/fd/{INSIDE_FD}", spec.devices)
        store.set_timeout(limit)
        store.set(f"fit/{spec.device}", "1")
        store.wait([f"fit/{other}" for other in range(spec.devices)], limit)
    except Exception as error:
        return Said(name=ALL_TO_ALL, verdict="unavailable", detail=f"not all devices came to it: {text(error)}")
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
        return Said(name=ALL_TO_ALL, verdict="failed", detail=f"among the {spec.devices} devices: {text(error)}")
    if wrong:
        return Said(name=ALL_TO_ALL, verdict="wrong", detail=f"among the {spec.devices} devices: {wrong}")
    return Said(name=ALL_TO_ALL, verdict="passed", values=_rate(spec.devices, kind, seconds), seconds=seconds)


def outside(torch: Any, spec: DeviceSpec, kind: str, device: Any, say: Callable[[Said], None]) -> None:
    """Meet the group and exchange data with all its devices, in a pair after measuring TCP; tells of each."""
    name = exchange_of(spec.label)
    found = _backend(kind)
    if isinstance(found, str):
        say(Said(name=name, verdict="unavailable", detail=found))
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
            say(link.measure(store, spec))
        first = sum(counts[node] for node in spec.group[: spec.group.index(spec.node)])
        rank, size = first + spec.device, sum(counts.values())
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
        seconds, wrong = (_reduce if spec.label else _gather)(torch, dist, kind, device, rank, size)
    except Exception as error:
        say(Said(name=name, verdict="failed", detail=f"with {among}: {text(error)}"))
        return
    if wrong:
        say(Said(name=name, verdict="failed", detail=f"with {among}: {wrong}"))
        return
    say(Said(name=name, verdict="passed", values=_rate(size, kind, seconds, spec.label), seconds=seconds))


def excuse(spec: DeviceSpec) -> None:
    """Tell the group that this node takes no part: its device 0 is not fit to."""
    try:
        dist: Any = importlib.import_module("torch.distributed")
        _store(dist, spec).set(f"devices/{spec.node}", _ABSENT)
    except Exception:
        return  # then the others wait until their time is over


def _backend(kind: str) -> tuple[Any, str] | str:
    """``torch.distributed`` and the name of the backend; or why there is none."""
    dist: Any = importlib.import_module("torch.distributed")
    backend = "nccl" if kind == "cuda" else "gloo"
    if not dist.is_available() or (backend == "nccl" and not dist.is_nccl_available()):
        return f"this torch has no {backend}"
    return dist, backend


def _store(dist: Any, spec: DeviceSpec) -> Any:
    host, _, port = spec.store.rpartition(":")
    limit = datetime.timedelta(seconds=spec.within_s)
    return dist.PrefixStore(spec.prefix, dist.TCPStore(host.strip("[]"), int(port), is_master=False, timeout=limit))


def _rate(size: int, kind: str, seconds: float, summed: str = "") -> dict[str, float]:
    """What each rank sent, at least; of a sum in a ring, each half of it goes nearly around."""
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
    """Send each rank something else; returns seconds and what was wrong."""
    pattern = _pattern(torch, kind, device)
    mine = torch.cat([pattern * (rank * size + other + 1) for other in range(size)])
    came = torch.zeros_like(mine)
    dist.all_to_all_single(came, mine)  # connections are made by the first one
    came.zero_()
    seconds = _timed(torch, kind, lambda: dist.all_to_all_single(came, mine))
    parts = came.chunk(size)
    wrong = [str(o) for o, part in enumerate(parts) if not torch.equal(part, pattern * (o * size + rank + 1))]
    dist.barrier()  # nobody leaves before everybody has what it needs
    return seconds, f"data of devices {', '.join(wrong)} came to device {rank} wrong" if wrong else ""


def _gather(torch: Any, dist: Any, kind: str, device: Any, rank: int, size: int) -> tuple[float, str]:
    """All-gather what is known of each rank; returns seconds and what was wrong."""
    pattern = _pattern(torch, kind, device)
    mine = pattern * (rank + 1)
    parts = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)
    for part in parts:
        part.zero_()
    seconds = _timed(torch, kind, lambda: dist.all_gather(parts, mine))
    wrong = [str(other) for other, part in enumerate(parts) if not torch.equal(part, pattern * (other + 1))]
    dist.barrier()
    return seconds, f"data of ranks {', '.join(wrong)} came in wrong" if wrong else ""


def _reduce(torch: Any, dist: Any, kind: str, device: Any, rank: int, size: int) -> tuple[float, str]:
    """Sum up what is known of each rank; returns seconds and what was wrong."""
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
    """Until the device has done what it was given."""
    if kind == "cuda":
        torch.cuda.synchronize()
