"""State of NVIDIA devices from their driver, through ``nvidia-ml-py``; unavailable without that package or a device.

A device with corrupted memory (uncorrected errors since the last reset, rows with a pending or failed remapping) must
not train. A throttled device (heat, power) is a warning.
"""

import contextlib
import importlib
from collections.abc import Callable
from typing import Any, Final

from ftcore.runtime.checks.protocol import CheckReport, Context
from ftcore.runtime.wire.frames import Gauge

_THROTTLED: Final = {
    "nvmlClocksThrottleReasonHwSlowdown": "throttled by its hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "throttled (temperature)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "throttled (power brake)",
}


def load() -> tuple[Any, str]:
    """The initialised ``pynvml``; or None, and the reason."""
    try:
        lib: Any = importlib.import_module("pynvml")
        lib.nvmlInit()
    except ImportError:
        return None, "nvidia-ml-py is not installed: pip install 'ftcore[nvml]'"
    except Exception as error:
        return None, f"the NVIDIA driver does not answer: {error}"
    return lib, ""


def facts() -> dict[str, str]:
    """Driver, models and MIG mode; empty without a device."""
    lib, _ = load()
    if lib is None:
        return {}
    found = {"driver": string(lib.nvmlSystemGetDriverVersion())}
    models, modes = [], []
    for index in range(lib.nvmlDeviceGetCount()):
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        models.append(string(lib.nvmlDeviceGetName(handle)))
        with contextlib.suppress(lib.NVMLError):
            modes.append("on" if lib.nvmlDeviceGetMigMode(handle)[0] else "off")
    found["models"] = ", ".join(f"{models.count(name)} x {name}" for name in dict.fromkeys(models))
    if modes:
        found["mig"] = ", ".join(dict.fromkeys(modes))
    return found


def check(context: Context) -> CheckReport:
    """Query the driver for memory errors and throttling."""
    lib, why = load()
    if lib is None:
        return CheckReport(verdict="unavailable", detail=why)
    broken: list[str] = []
    doubtful: list[str] = []
    values: dict[str, float] = {}
    for index in range(lib.nvmlDeviceGetCount()):
        try:
            handle = lib.nvmlDeviceGetHandleByIndex(index)
        except lib.NVMLError as error:
            broken.append(f"device {index} does not answer: {error}")
            continue
        broken += _memory(lib, handle, index)
        doubtful += _clocks(lib, handle, index, values)
    if broken:
        return CheckReport(verdict="failed", detail="; ".join(broken)[:500], values=values)
    if doubtful:
        return CheckReport(verdict="warned", detail="; ".join(doubtful)[:500], values=values)
    return CheckReport(verdict="passed", values=values)


def gauges(lib: Any) -> dict[str, Gauge]:
    """Gauges of each device, by index; rounded, so that noise does not change them."""
    found: dict[str, Gauge] = {}
    for index in range(lib.nvmlDeviceGetCount()):
        try:
            handle = lib.nvmlDeviceGetHandleByIndex(index)
        except lib.NVMLError as error:
            found[str(index)] = Gauge(trouble=f"device {index} does not answer: {error}"[:200])
            continue
        found[str(index)] = _gauge(lib, handle, index)
    return found


def _gauge(lib: Any, handle: Any, index: int) -> Gauge:
    return Gauge(
        celsius=_rounded(lib, 5, lambda: lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)),
        sm_mhz=_rounded(lib, 50, lambda: lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),
        used_mib=_rounded(lib, 256, lambda: lib.nvmlDeviceGetMemoryInfo(handle).used >> 20),
        trouble="; ".join([*_memory(lib, handle, index), *_clocks(lib, handle, index, {})])[:200],
    )


def _rounded(lib: Any, step: int, read: Callable[[], int]) -> int | None:
    try:
        return round(read() / step) * step
    except lib.NVMLError:
        return None


def _memory(lib: Any, handle: Any, index: int) -> list[str]:
    found = []
    with contextlib.suppress(lib.NVMLError):
        count = lib.nvmlDeviceGetTotalEccErrors(handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC)
        if count:
            found.append(f"device {index}: {count} uncorrected memory errors since its last reset")
    with contextlib.suppress(lib.NVMLError):
        _, _, waiting, failed = lib.nvmlDeviceGetRemappedRows(handle)
        if failed:
            found.append(f"device {index}: remapping of a memory row failed")
        elif waiting:
            found.append(f"device {index}: remapping of memory rows is pending; reset the device")
    with contextlib.suppress(lib.NVMLError):
        if lib.nvmlDeviceGetRetiredPagesPendingStatus(handle):
            found.append(f"device {index}: retirement of memory pages is pending; reset the device")
    return found


def _clocks(lib: Any, handle: Any, index: int, values: dict[str, float]) -> list[str]:
    found = []
    with contextlib.suppress(lib.NVMLError):
        values[f"sm_MHz_{index}"] = float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM))
    with contextlib.suppress(lib.NVMLError):
        reasons = lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        found += [f"device {index}: {text}" for name, text in _THROTTLED.items() if reasons & getattr(lib, name, 0)]
    return found


def string(text: Any) -> str:
    """A string of the library, which some versions return as bytes."""
    return text.decode() if isinstance(text, bytes) else str(text)
