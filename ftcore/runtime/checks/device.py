"""Checks of one device: a calculation with a known result, copies, then exchanges with other devices (``groups.py``).

The matrices have small integer entries, so every data type used for training gives the exact product, in any order of
summation. The product is verified by Freivalds' method against 64-bit integer sums of the CPU. A single wrong or
non-finite value fails the device.

House rule: a step that may hang is announced with its timeout, and the agent ends it.

Source of the comparison: R. Freivalds, "Probabilistic machines can use less running time" (IFIP 1977).
"""

import importlib
import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.runtime.checks import groups
from ftcore.runtime.checks.protocol import ALL_TO_ALL, COPIES, MATMUL, CheckReport, DeviceSpec, text

INNER: Final = 256
"""Terms of each sum of ones and minus ones, so that no entry exceeds 256, which bfloat16 represents exactly."""

SIZES: Final = {"cpu": 512, "cuda": 8192}
"""Rows and columns of the product; the calculation takes some hundred milliseconds on a GPU or a CPU."""

REPEATS: Final = {"cpu": 8, "cuda": 50}
COPIED_BYTES: Final = 256 << 20
COPIES_S: Final = 20.0
DTYPES: Final = {"cpu": ("float32",), "cuda": ("float32", "bfloat16", "float16")}


def check(spec: DeviceSpec, emit: Callable[[CheckReport], None]) -> None:
    """Check the device, then exchange data with its node's other devices and its group; reports each result."""
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        emit(CheckReport(name=MATMUL, verdict="unavailable", detail=f"torch cannot be imported: {text(error)}"))
        return
    if _check_alone(torch, spec, emit):
        if spec.group:
            kind, device = _device(torch, spec.device)
            groups.across_nodes(torch, spec, kind, device, emit)
    elif spec.group and spec.device == 0:
        groups.decline(spec)


def _check_alone(torch: Any, spec: DeviceSpec, emit: Callable[[CheckReport], None]) -> bool:
    """Run the checks that need no other node; returns whether the device can exchange data with others."""
    try:
        kind, device = _device(torch, spec.device)
        wrong, seconds = calculate(torch, kind, device)
    except Exception as error:
        emit(CheckReport(name=MATMUL, verdict="failed", detail=f"device {spec.device}: {text(error)}"))
        return False
    detail = f"device {spec.device}: {wrong}" if wrong else ""
    emit(CheckReport(name=MATMUL, verdict="wrong" if wrong else "passed", detail=detail, seconds=seconds))
    if not spec.first:
        return True
    emit(CheckReport(begun=COPIES, budget_s=COPIES_S))
    copied = copies(torch, kind, device)
    emit(copied)
    if copied.verdict == "failed":
        return False
    if spec.devices < 2:
        return True
    emit(CheckReport(begun=ALL_TO_ALL, budget_s=3 * spec.inside_s))
    exchanged = groups.within_node(torch, spec, kind, device)
    emit(exchanged)
    return exchanged.verdict != "failed"


def _device(torch: Any, index: int) -> tuple[str, Any]:
    if torch.cuda.is_available() and torch.cuda.device_count() > index:
        torch.cuda.set_device(index)
        return "cuda", torch.device("cuda", index)
    torch.set_num_threads(1)
    return "cpu", torch.device("cpu")


def calculate(torch: Any, kind: str, device: Any) -> tuple[str, float]:
    """Multiply and verify the product.

    Returns:
        The error, or an empty string; the duration of the timed products in seconds.
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
        groups.wait(torch, kind)
        begun = time.perf_counter()
        for _ in range(REPEATS[kind]):
            product = a @ b
        groups.wait(torch, kind)
        seconds += time.perf_counter() - begun
        got = product.to(device="cpu", dtype=torch.float64)
        wanted = probe.to(torch.float64)
        if not torch.isfinite(got).all():
            return f"a product in {name} contains non-finite values", seconds
        if not (torch.equal(got @ wanted, rows.double()) and torch.equal(wanted @ got, columns.double())):
            return f"a product in {name} contains wrong values", seconds
    return "", seconds


def copies(torch: Any, kind: str, device: Any) -> CheckReport:
    """Bandwidth between host and device, and to the next device, in GB/s; unavailable on a CPU."""
    if kind == "cpu":
        return CheckReport(name=COPIES, verdict="unavailable", detail="this node trains on its CPUs")
    found: dict[str, float] = {}
    try:
        on_host = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
        on_device = torch.empty_like(on_host, device=device)
        pairs = [("host_to_device_GBps", on_device, on_host), ("device_to_host_GBps", on_host, on_device)]
        count = torch.cuda.device_count()
        if count > 1:
            neighbour = torch.empty_like(on_host, device=torch.device("cuda", (device.index + 1) % count))
            pairs.append(("device_to_device_GBps", neighbour, on_device))
        for name, into, source in pairs:
            into.copy_(source)
            groups.wait(torch, kind)
            begun = time.perf_counter()
            for _ in range(4):
                into.copy_(source)
            groups.wait(torch, kind)
            found[name] = round(4 * on_host.numel() / (time.perf_counter() - begun) / 1e9, 2)
    except Exception as error:
        return CheckReport(name=COPIES, verdict="failed", detail=f"device {device.index}: {text(error)}", values=found)
    detail = "" if count > 1 else "no second device to copy to"
    return CheckReport(name=COPIES, verdict="passed", detail=detail, values=found)
