"""Accelerators watched while a node trains: gauges and Xids from a made-up driver, the kernel log, a silent driver."""

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftcore.runtime.agent import health
from ftcore.runtime.agent.health import HealthCheck
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.checks import host, nvml, watch, xid
from ftcore.runtime.checks.protocol import CheckReport, Context
from ftcore.runtime.wire.frames import Gauge

CONTEXT = Context(node="n", devices=2, log_dir="/nowhere")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({10: "Timeout", 3: "Not Supported", 15: "GPU is lost"}[value])
        self.value = value


class Driver:
    """The used part of pynvml: two devices, the second optionally lost."""

    NVMLError = NVMLError
    NVML_ERROR_TIMEOUT = 10
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    nvmlClocksThrottleReasonHwSlowdown = 8  # noqa: N815

    def __init__(self, lost: bool = False, xids: tuple[int, ...] = (), events: bool = True) -> None:
        self._lost, self._xids, self._events = lost, list(xids), events

    def nvmlInit(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if self._lost and index == 1:
            raise NVMLError(15)
        return index

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        return 42

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return 1987

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=80 << 30, free=0, used=(70 << 30) + 1)

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetRemappedRows(self, handle: int) -> tuple[int, int, int, int]:  # noqa: N802
        raise NVMLError(3)

    def nvmlDeviceGetRetiredPagesPendingStatus(self, handle: int) -> int:  # noqa: N802
        raise NVMLError(3)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 8 if handle == 0 else 0

    def nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "set"

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:  # noqa: N802
        if not self._events:
            raise NVMLError(3)

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> Any:  # noqa: N802
        if not self._xids:
            raise NVMLError(10)
        return SimpleNamespace(device=0, eventType=8, eventData=self._xids.pop(0))

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=b"00000000:3B:00.0")


class Enough(Exception):
    """Ends a watch after enough reports."""


def told(count: int) -> list[CheckReport]:
    """The first reports of the watching process."""
    said: list[CheckReport] = []

    def say(each: CheckReport) -> None:
        said.append(each)
        if len(said) == count:
            raise Enough

    with pytest.raises(Enough):
        watch.watch(say)
    return said


def test_gauges_and_xids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gauges are rounded, lost and throttled devices are reported, and rules match an Xid."""
    monkeypatch.setitem(sys.modules, "pynvml", Driver(lost=True, xids=(79,)))
    monkeypatch.setattr(xid, "KERNEL", "/nowhere")
    first, second = told(2)
    assert first.gauges == {
        "0": Gauge(celsius=40, sm_mhz=2000, used_mib=71680, trouble="device 0: throttled by its hardware"),
        "1": Gauge(trouble="device 1 does not answer: GPU is lost"),
    }
    assert (first.hits, first.detail) == ((), "")
    [hit] = second.hits
    assert (hit.rule, hit.cls, hit.count) == ("xid-off-the-bus", "gpu-hw", 1)
    assert hit.line == "NVRM: Xid (PCI:00000000:3B:00.0): 79, reported by NVML"


def test_the_kernel_is_asked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the kernel log is readable, it is used, and Xids of NVML are not reported in addition."""
    log = tmp_path / "kmsg"
    os.mkfifo(log)
    writer = os.open(log, os.O_RDWR)
    monkeypatch.setattr(xid, "KERNEL", str(log))
    monkeypatch.setattr(xid.os, "lseek", lambda *_: 0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    os.write(writer, b"6,1,1,-;eth0: link up\n4,2,2,-;NVRM: Xid (PCI:0000:38:00): 48, pid=7, DBE at 3\n")
    first, second = told(2)
    assert "nvidia-ml-py" in first.detail and first.gauges == {}
    assert [(hit.rule, hit.line[-8:]) for hit in second.hits] == [("xid-double-bit-ecc", "DBE at 3")]
    os.close(writer)


def test_nothing_to_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library and without the kernel log there is one report, and the process ends."""
    monkeypatch.setattr(xid, "KERNEL", "/nowhere")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    said: list[CheckReport] = []
    watch.watch(said.append)
    assert [(each.verdict, "nvidia-ml-py" in each.detail) for each in said] == [("unavailable", True)]
    with pytest.raises(LookupError):
        xid.Events(Driver(events=False))
    assert xid.Events(Driver()).wait(0.01) == []


def test_xids_of_the_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A serious Xid since the host started is a warning, others are counted; an unreadable log is unavailable."""
    log = tmp_path / "kmsg"
    monkeypatch.setattr(xid, "KERNEL", str(log))
    assert xid.check(CONTEXT).verdict == "unavailable"
    log.write_text("4,1,1,-;NVRM: Xid (PCI:0000:38:00): 31, pid=7, MMU Fault\n")
    assert (xid.check(CONTEXT).verdict, xid.check(CONTEXT).values) == ("passed", {"xids": 1.0, "serious": 0.0})
    with log.open("a") as file:
        file.write("4,2,2,-;NVRM: Xid (PCI:0000:38:00): 79, GPU has fallen off the bus.\n")
    said = xid.check(CONTEXT)
    assert said.verdict == "warned" and "fallen off the bus" in said.detail and said.values["serious"] == 1.0
    assert "xid" in host.BUILT_IN and nvml.load()[0] is None


@pytest.mark.parametrize(
    ("driver", "why"), [("import time; time.sleep(3600)", "no answer"), ("import os; os.abort()", "-6")]
)
def test_a_driver_that_hangs_or_dies(driver: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hanging process is killed, a dead one is reported in heartbeats; the agent itself waits for neither."""
    (tmp_path / "pynvml.py").write_text(driver + "\n")
    monkeypatch.setattr(health, "SILENT_S", 1.0 if "sleep" in driver else 120.0)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    said: list[CheckReport] = []

    async def watched() -> None:
        reaper = Reaper()
        try:
            await HealthCheck(reaper, env, CONTEXT, 2).watch(said.append)
        finally:
            reaper.close()

    asyncio.run(watched())
    assert [each.verdict for each in said] == ["unavailable"] and why in said[0].detail
