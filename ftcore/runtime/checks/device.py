"""One device: a calculation whose result is known, copies, then data with other devices (``groups.py``).

The matrices hold small whole numbers, so every type that is used for training gives the exact product, whatever the
order of summation; the product is compared by Freivalds' method with sums that the processor made in 64-bit integers.
A value that is wrong by the smallest step, or no number, fails the device.

House rule: what may hang is announced before, with its budget, and the agent ends it.

Source of the comparison: R. Freivalds, "Probabilistic machines can use less running time" (IFIP 1977).
"""

import importlib
import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.runtime.checks import groups
from ftcore.runtime.checks.protocol import ALL_TO_ALL, COPIES, MATMUL, DeviceSpec, Said, text

INNER: Final = 256
"""Terms of each sum; of ones and minus ones, so no entry exceeds 256, which bfloat16 still holds exactly."""

SIZES: Final = {"cpu": 512, "cuda": 8192}
"""Rows and columns of the product: a GPU is kept busy for some hundred milliseconds in all, a CPU likewise."""

REPEATS: Final = {"cpu": 8, "cuda": 50}
COPIED_BYTES: Final = 256 << 20
COPIES_S: Final = 20.0
DTYPES: Final = {"cpu": ("float32",), "cuda": ("float32", "bfloat16", "float16")}


def check(spec: DeviceSpec, say: Callable[[Said], None]) -> None:
    """Check the device, then exchange data with the others of its node and with its group; tells of each."""
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        say(Said(name=MATMUL, verdict="unavailable", detail=f"torch cannot be imported: {text(error)}"))
        return
    if _by_itself(torch, spec, say):
        if spec.group:
            kind, device = _device(torch, spec.device)
            groups.outside(torch, spec, kind, device, say)
    elif spec.group and spec.device == 0:
        groups.excuse(spec)


def _by_itself(torch: Any, spec: DeviceSpec, say: Callable[[Said], None]) -> bool:
    """What needs no other node; false if the device is not fit to exchange data with others."""
    try:
        kind, device = _device(torch, spec.device)
        wrong, seconds = calculate(torch, kind, device)
    except Exception as error:
        say(Said(name=MATMUL, verdict="failed", detail=f"device {spec.device}: {text(error)}"))
        return False
    detail = f"device {spec.device}: {wrong}" if wrong else ""
    say(Said(name=MATMUL, verdict="wrong" if wrong else "passed", detail=detail, seconds=seconds))
    if not spec.first:
        return True
    say(Said(begun=COPIES, budget_s=COPIES_S))
    copied = copies(torch, kind, device)
    say(copied)
    if copied.verdict == "failed":
        return False
    if spec.devices < 2:
        return True
    say(Said(begun=ALL_TO_ALL, budget_s=3 * spec.inside_s))
    exchanged = groups.inside(torch, spec, kind, device)
    say(exchanged)
    return exchanged.verdict != "failed"


def _device(torch: Any, index: int) -> tuple[str, Any]:
    if torch.cuda.is_available() and torch.cuda.device_count() > index:
        torch.cuda.set_device(index)
        return "cuda", torch.device("cuda", index)
    torch.set_num_threads(1)
    return "cpu", torch.device("cpu")


def calculate(torch: Any, kind: str, device: Any) -> tuple[str, float]:
    """Multiply and compare.

    Returns:
        What was wrong, or nothing; seconds of the timed products.
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
            return f"a product in {name} holds values that are no numbers", seconds
        if not (torch.equal(got @ wanted, rows.double()) and torch.equal(wanted @ got, columns.double())):
            return f"a product in {name} holds wrong values", seconds
    return "", seconds


def copies(torch: Any, kind: str, device: Any) -> Said:
    """Bandwidth between host and device, and to the next device, in GB/s; there is none to measure on a CPU."""
    if kind == "cpu":
        return Said(name=COPIES, verdict="unavailable", detail="this node trains on its processors")
    found: dict[str, float] = {}
    try:
        there = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
        here = torch.empty_like(there, device=device)
        pairs = [("host_to_device_GBps", here, there), ("device_to_host_GBps", there, here)]
        count = torch.cuda.device_count()
        if count > 1:
            other = torch.empty_like(there, device=torch.device("cuda", (device.index + 1) % count))
            pairs.append(("device_to_device_GBps", other, here))
        for name, into, source in pairs:
            into.copy_(source)
            groups.wait(torch, kind)
            begun = time.perf_counter()
            for _ in range(4):
                into.copy_(source)
            groups.wait(torch, kind)
            found[name] = round(4 * there.numel() / (time.perf_counter() - begun) / 1e9, 2)
    except Exception as error:
        return Said(name=COPIES, verdict="failed", detail=f"device {device.index}: {text(error)}", values=found)
    detail = "" if count > 1 else "no second device to copy to"
    return Said(name=COPIES, verdict="passed", detail=detail, values=found)
