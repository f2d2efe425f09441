"""One device: a calculation whose result is known, then an exchange of data with the devices of other nodes.

The same on CPU (gloo) and GPU (NCCL). The matrices hold small whole numbers, so every type that is used for training
gives the exact product, whatever the order of summation; the product is compared by Freivalds' method with sums that
the processor made in 64-bit integers. A value that is wrong by the smallest step, or no number, fails the device.

Source of the comparison: R. Freivalds, "Probabilistic machines can use less running time" (IFIP 1977).
"""

import datetime
import importlib
import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.runtime.checks.protocol import DeviceSpec, Said

INNER: Final = 256
"""Terms of each sum; of ones and minus ones, so no entry exceeds 256, which bfloat16 still holds exactly."""

SIZES: Final = {"cpu": 512, "cuda": 8192}
"""Rows and columns of the product: a GPU is kept busy for some hundred milliseconds in all, a CPU likewise."""

REPEATS: Final = {"cpu": 8, "cuda": 50}
EXCHANGED_BYTES: Final = {"cpu": 1 << 20, "cuda": 64 << 20}
EXCHANGES: Final = 5
DTYPES: Final = {"cpu": ("float32",), "cuda": ("float32", "bfloat16", "float16")}


def check(spec: DeviceSpec, say: Callable[[Said], None]) -> None:
    """Check the device, then exchange data with its group; tells of each."""
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        say(Said(name="matmul", verdict="unavailable", detail=f"torch cannot be imported: {_text(error)}"))
        return
    try:
        kind, device = _device(torch, spec.device)
        wrong, seconds, bandwidth = calculate(torch, kind, device)
    except Exception as error:
        say(Said(name="matmul", verdict="failed", detail=f"device {spec.device}: {_text(error)}"))
        return
    detail = f"device {spec.device}: {wrong}" if wrong else ""
    say(Said(name="matmul", verdict="wrong" if wrong else "passed", detail=detail, values=bandwidth, seconds=seconds))
    if spec.group:
        say(_exchange(torch, spec, kind, device))


def _device(torch: Any, index: int) -> tuple[str, Any]:
    if torch.cuda.is_available() and torch.cuda.device_count() > index:
        torch.cuda.set_device(index)
        return "cuda", torch.device("cuda", index)
    torch.set_num_threads(1)
    return "cpu", torch.device("cpu")


def calculate(torch: Any, kind: str, device: Any) -> tuple[str, float, dict[str, float]]:
    """Multiply and compare.

    Returns:
        What was wrong, or nothing; seconds of the timed products; what else was measured.
    """
    size, seconds = SIZES[kind], 0.0
    chance = torch.Generator().manual_seed(20240229)
    left = torch.randint(0, 2, (size, INNER), generator=chance) * 2 - 1
    right = torch.randint(0, 2, (INNER, size), generator=chance) * 2 - 1
    probe = torch.randint(-3, 4, (size,), generator=chance)
    rows, columns = left @ (right @ probe), (probe @ left) @ right
    for name in DTYPES[kind]:
        dtype = getattr(torch, name)
        a, b = left.to(device=device, dtype=dtype), right.to(device=device, dtype=dtype)
        product = a @ b
        _wait(torch, kind)
        begun = time.perf_counter()
        for _ in range(REPEATS[kind]):
            product = a @ b
        _wait(torch, kind)
        seconds += time.perf_counter() - begun
        got = product.to(device="cpu", dtype=torch.float64)
        wanted = probe.to(torch.float64)
        if not torch.isfinite(got).all():
            return f"a product in {name} holds values that are no numbers", seconds, {}
        if not (torch.equal(got @ wanted, rows.double()) and torch.equal(wanted @ got, columns.double())):
            return f"a product in {name} holds wrong values", seconds, {}
    return "", seconds, _copies(torch, kind, device)


def _copies(torch: Any, kind: str, device: Any) -> dict[str, float]:
    """Bandwidth between host and device, and to the next device, in GB/s; nothing on a CPU."""
    if kind == "cpu":
        return {}
    there = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    here = torch.empty_like(there, device=device)
    found = {}
    pairs = [("host_to_device_GBps", here, there), ("device_to_host_GBps", there, here)]
    count = torch.cuda.device_count()
    if count > 1:
        other = torch.empty_like(there, device=torch.device("cuda", (device.index + 1) % count))
        pairs.append(("device_to_device_GBps", other, here))
    for name, into, source in pairs:
        into.copy_(source)
        _wait(torch, kind)
        begun = time.perf_counter()
        for _ in range(4):
            into.copy_(source)
        _wait(torch, kind)
        found[name] = round(4 * there.numel() / (time.perf_counter() - begun) / 1e9, 2)
    return found


def _wait(torch: Any, kind: str) -> None:
    if kind == "cuda":
        torch.cuda.synchronize()


def _exchange(torch: Any, spec: DeviceSpec, kind: str, device: Any) -> Said:
    dist: Any = importlib.import_module("torch.distributed")
    backend = "nccl" if kind == "cuda" else "gloo"
    if not dist.is_available() or (backend == "nccl" and not dist.is_nccl_available()):
        return Said(name="exchange", verdict="unavailable", detail=f"this torch has no {backend}")
    limit = datetime.timedelta(seconds=spec.within_s)
    try:
        host, _, port = spec.store.rpartition(":")
        meeting = dist.TCPStore(host.strip("[]"), int(port), is_master=False, timeout=limit)
        store = dist.PrefixStore(spec.prefix, meeting)
        first, size = _ranks(store, spec)
        dist.init_process_group(backend, store=store, rank=first + spec.device, world_size=size, timeout=limit)
        seconds, wrong = _gather(torch, dist, kind, device, first + spec.device, size)
    except Exception as error:
        return Said(name="exchange", verdict="failed", detail=f"with {'-'.join(spec.group)}: {_text(error)}")
    if wrong:
        return Said(name="exchange", verdict="failed", detail=f"with {'-'.join(spec.group)}: {wrong}")
    sent = EXCHANGES * (size - 1) * EXCHANGED_BYTES[kind]
    values = {"bandwidth_GBps": round(sent / max(seconds, 1e-9) / 1e9, 3)}
    return Said(name="exchange", verdict="passed", values=values, seconds=seconds)


def _ranks(store: Any, spec: DeviceSpec) -> tuple[int, int]:
    """The rank of this node's first device, and how many devices there are in the group."""
    if spec.device == 0:
        store.set(f"devices/{spec.node}", str(spec.devices))
    counts = [int(store.get(f"devices/{node}")) for node in spec.group]
    return sum(counts[: spec.group.index(spec.node)]), sum(counts)


def _gather(torch: Any, dist: Any, kind: str, device: Any, rank: int, size: int) -> tuple[float, str]:
    """All-gather what is known of each rank; returns seconds and what was wrong."""
    count = EXCHANGED_BYTES[kind] // 4
    pattern = torch.arange(count, dtype=torch.int32, device=device) % 9973
    mine = pattern * (rank + 1)
    parts = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(parts, mine)  # connections are made by the first one
    for part in parts:
        part.zero_()
    _wait(torch, kind)
    begun = time.perf_counter()
    for _ in range(EXCHANGES):
        dist.all_gather(parts, mine)
    _wait(torch, kind)
    seconds = time.perf_counter() - begun
    wrong = [str(other) for other, part in enumerate(parts) if not torch.equal(part, pattern * (other + 1))]
    dist.barrier()  # nobody leaves before everybody has what it needs
    return seconds, f"data of ranks {', '.join(wrong)} came in wrong" if wrong else ""


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
