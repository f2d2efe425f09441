"""A node whose accelerators are watched while it trains: an Xid reaches the log, gauges reach ``ftctl``."""

import json
import sys
from pathlib import Path

import pytest
from harness import ftrun, wait_until

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import install

SITE = """
import sys

if sys.orig_argv[-2:] == ["ftcore.runtime.checks", "watch"]:
    from ftcore.runtime.checks import xid

    xid.KERNEL = "/nowhere"
elif "ftcore.cli.ftrun" in sys.orig_argv:
    from ftcore.runtime.agent import health

    health._DEVICES = ("/dev/null",)
"""
"""Put into every process by its path: one file of /dev is an accelerator, and the kernel's log is closed."""

PYNVML = """
import time
from types import SimpleNamespace

NVML_ERROR_TIMEOUT, NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 10, 0, 1
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 1, 0, 8
xids = [79]

class NVMLError(Exception):
    def __init__(self, value):
        self.value = value

def no(*_):
    raise NVMLError(3)

nvmlDeviceGetRemappedRows = nvmlDeviceGetRetiredPagesPendingStatus = nvmlDeviceGetMemoryInfo = no

def nvmlInit(): pass
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetTemperature(handle, sensor): return 61
def nvmlDeviceGetClockInfo(handle, kind): return 1980
def nvmlDeviceGetTotalEccErrors(handle, kind, counter): return 3
def nvmlDeviceGetCurrentClocksThrottleReasons(handle): return 0
def nvmlEventSetCreate(): return "set"
def nvmlDeviceRegisterEvents(handle, kinds, events): pass
def nvmlDeviceGetPciInfo(handle): return SimpleNamespace(busId="00000000:3B:00.0")

def nvmlEventSetWait_v2(events, timeout_ms):
    import os
    from pathlib import Path
    for _ in range(timeout_ms // 100):
        if xids and Path("fallen").exists():
            return SimpleNamespace(device=0, eventType=8, eventData=xids.pop())
        time.sleep(0.1)
    raise NVMLError(NVML_ERROR_TIMEOUT)
"""


@pytest.mark.timeout(300)
def test_accelerators_are_watched_while_a_node_trains(tmp_path: Path) -> None:
    """An Xid while workers run is in the log as the kernel's, and heartbeats carry the gauges; training goes on."""
    site = install(tmp_path / "site", "acme-site", "1.0", {"sitecustomize.py": SITE, "pynvml.py": PYNVML}, {})
    with ftrun(tmp_path) as job:
        job.env["PYTHONPATH"] = f"{site}:{job.env.get('PYTHONPATH', '')}".rstrip(":")
        (job.cwd / "policy.yaml").write_text("version: 1\njob: {health: never}\n")
        run = job.start("--standalone", "--policy", "policy.yaml", preload=False)
        job.wait("workers.stepped")
        (job.cwd / "fallen").touch()
        matched = job.wait("log.matched").data
        assert (matched.rank, matched.rule, matched.cls) == (-1, "xid-off-the-bus", "gpu-hw")
        assert "00000000:3B:00.0" in matched.line

        def told() -> bool:
            shown = json.loads(job.ftctl("--job", "job", "status", "--nodes", "--format", "json").stdout or "[]")
            return bool(shown) and (shown[0]["phase"], shown[0]["hits"]) == ("running", {"gpu-hw": 1})

        wait_until(told, "the Xid in a heartbeat")
        [node] = json.loads(job.ftctl("--job", "job", "status", "--nodes", "--format", "json").stdout)
        assert node["gauges"]["0"]["celsius"] == 60 and "3 uncorrected" in node["gauges"]["0"]["trouble"]
        assert job.of("incident.opened") == []
        job.finish()
        assert run.end() == 0
