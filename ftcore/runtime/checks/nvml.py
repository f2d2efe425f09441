"""What the driver of NVIDIA's devices says of them, through ``nvidia-ml-py``; without it, or a device: unavailable.

A device that lost its memory's integrity (uncorrected errors since the last reset, rows that wait to be remapped or
cannot be) must not train; one that is held back (heat, power) should be looked at.
"""

import contextlib
import importlib
from typing import Any, Final

from ftcore.runtime.checks.protocol import Context, Said

_HELD_BACK: Final = {
    "nvmlClocksThrottleReasonHwSlowdown": "slowed down by its hardware",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "slowed down for heat",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "slowed down for lack of power",
}


def _load() -> Any:
    module: Any = importlib.import_module("pynvml")
    module.nvmlInit()
    return module


def facts() -> dict[str, str]:
    """Driver, models and MIG mode; empty without a device."""
    try:
        lib = _load()
    except Exception:
        return {}
    found = {"driver": _str(lib.nvmlSystemGetDriverVersion())}
    models, modes = [], []
    for index in range(lib.nvmlDeviceGetCount()):
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        models.append(_str(lib.nvmlDeviceGetName(handle)))
        with contextlib.suppress(lib.NVMLError):
            modes.append("on" if lib.nvmlDeviceGetMigMode(handle)[0] else "off")
    found["models"] = ", ".join(f"{models.count(name)} x {name}" for name in dict.fromkeys(models))
    if modes:
        found["mig"] = ", ".join(dict.fromkeys(modes))
    return found


def check(context: Context) -> Said:
    """Ask the driver for errors of memory and for what holds the devices back."""
    try:
        lib = _load()
    except ImportError:
        return Said(verdict="unavailable", detail="nvidia-ml-py is not installed: pip install 'ftcore[nvml]'")
    except Exception as error:
        return Said(verdict="unavailable", detail=f"no driver answers: {error}")
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
        return Said(verdict="failed", detail="; ".join(broken)[:500], values=values)
    if doubtful:
        return Said(verdict="warned", detail="; ".join(doubtful)[:500], values=values)
    return Said(verdict="passed", values=values)


def _memory(lib: Any, handle: Any, index: int) -> list[str]:
    found = []
    with contextlib.suppress(lib.NVMLError):
        count = lib.nvmlDeviceGetTotalEccErrors(handle, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, lib.NVML_VOLATILE_ECC)
        if count:
            found.append(f"device {index}: {count} uncorrected memory errors since its last reset")
    with contextlib.suppress(lib.NVMLError):
        _, _, waiting, failed = lib.nvmlDeviceGetRemappedRows(handle)
        if failed:
            found.append(f"device {index}: a row of memory could not be remapped")
        elif waiting:
            found.append(f"device {index}: rows of memory wait for a reset to be remapped")
    with contextlib.suppress(lib.NVMLError):
        if lib.nvmlDeviceGetRetiredPagesPendingStatus(handle):
            found.append(f"device {index}: pages of memory wait for a reset to be retired")
    return found


def _clocks(lib: Any, handle: Any, index: int, values: dict[str, float]) -> list[str]:
    found = []
    with contextlib.suppress(lib.NVMLError):
        values[f"sm_MHz_{index}"] = float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM))
    with contextlib.suppress(lib.NVMLError):
        reasons = lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        found += [f"device {index}: {text}" for name, text in _HELD_BACK.items() if reasons & getattr(lib, name, 0)]
    return found


def _str(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)
