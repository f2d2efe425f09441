"""A node's health check: the host's checks, NVML with a made-up driver, timeouts, and the combined finding."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from ftcore.commands import CheckHealth
from ftcore.engine.actions import Findings
from ftcore.ids import Round
from ftcore.runtime.agent.health import HUNG, HealthCheck, findings
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.checks import host, link, nvml
from ftcore.runtime.checks.protocol import CheckReport, Context, DeviceSpec

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import install

CONTEXT = Context(node="n", devices=0, log_dir="/nowhere", address="127.0.0.1")


class Driver:
    """The used part of pynvml."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_CLOCK_SM = 1
    nvmlClocksThrottleReasonHwThermalSlowdown = 64  # noqa: N815

    class NVMLError(Exception):
        pass

    def __init__(self, errors: int = 0, rows: tuple[int, int, int, int] = (0, 0, 0, 0), held: int = 0) -> None:
        self._errors, self._rows, self._held = errors, rows, held

    def nvmlInit(self) -> None: ...  # noqa: N802

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlSystemGetDriverVersion": b"550.54",
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetName": "H100",
            "nvmlDeviceGetMigMode": (0, 0),
            "nvmlDeviceGetTotalEccErrors": self._errors,
            "nvmlDeviceGetRemappedRows": self._rows,
            "nvmlDeviceGetClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksThrottleReasons": self._held,
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda *_: answers[name]

    def nvmlDeviceGetRetiredPagesPendingStatus(self, _: Any) -> int:  # noqa: N802
        raise self.NVMLError("not supported")


@pytest.mark.parametrize(
    ("driver", "verdict", "word"),
    [
        (Driver(), "passed", ""),
        (Driver(errors=3), "failed", "3 uncorrected memory errors"),
        (Driver(rows=(0, 0, 1, 0)), "failed", "remapping of memory rows is pending"),
        (Driver(rows=(0, 1, 0, 1)), "failed", "remapping of a memory row failed"),
        (Driver(held=64), "warned", "throttled (temperature)"),
    ],
)
def test_nvml(driver: Driver, verdict: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Corrupted memory fails a node, throttling is a warning, the rest are values."""
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    said = nvml.check(CONTEXT)
    assert said.verdict == verdict and word in said.detail
    assert nvml.facts() == {"driver": "550.54", "models": "2 x H100", "mig": "off"}


def test_nvml_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nvidia-ml-py, or without a driver, it is unavailable with the reason."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.check(CONTEXT).verdict == "unavailable" and "nvidia-ml-py" in nvml.check(CONTEXT).detail
    assert nvml.facts() == {}

    def no_driver() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=no_driver))
    assert "Driver Not Loaded" in nvml.check(CONTEXT).detail


def test_disk(tmp_path: Path) -> None:
    """A writable directory passes and is left clean; an unwritable one is a warning."""
    said = host.disk(Context(node="n", devices=0, log_dir=str(tmp_path)))
    assert said.verdict in ("passed", "warned") and said.values["free_GB"] > 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    said = host.disk(Context(node="n", devices=0, log_dir=str(tmp_path / "file")))
    assert said.verdict == "warned" and str(tmp_path) in said.detail


def test_network_of_the_host() -> None:
    """Data passes over the node's own address; another host's address is a warning."""
    assert host.nic(CONTEXT).values["loopback_GBps"] > 0
    assert host.nic(Context(node="n", devices=0, log_dir="", address="192.0.2.1")).verdict == "warned"
    assert host.shared_memory(CONTEXT).verdict in ("passed", "warned")
    assert host.configuration(CONTEXT).facts["python"]


CHECKS = """
import os, time

def good(context): return {"verdict": "passed", "values": {"x": 1.0}, "facts": {"acme": context.node}}
def bad(context): return {"verdict": "failed", "detail": "a fan stands still"}
def raising(context): raise KeyError("no such thing")
def crashing(context): os.abort()
def hanging(context): time.sleep(3600)
def nonsense(context): return {"verdict": "fine"}

hanging.budget_s = 0.5
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    names = ("bad", "crashing", "good", "hanging", "nonsense", "raising")
    entries = {"ftcore.checks": {**{name: f"acme_checks:{name}" for name in names}, "missing": "acme_checks:missing"}}
    made = install(tmp_path / "site", "acme-checks", "1.0", {"acme_checks.py": CHECKS}, entries)
    sys.path.insert(0, str(made))
    yield made
    sys.path.remove(str(made))


def test_checks_of_packages_keep_to_their_budget(site: Path, tmp_path: Path) -> None:
    """A check that hangs or crashes is killed and recorded, and the others run; one that raises is unavailable."""
    env = {**os.environ, "PYTHONPATH": f"{site}:{os.environ.get('PYTHONPATH', '')}"}
    context = Context(node="n", devices=0, log_dir=str(tmp_path / "logs"), address="127.0.0.1")

    async def made() -> list[CheckReport]:
        reaper = Reaper()
        try:
            check = HealthCheck(reaper, env, context, 1)
            return await check._host(asyncio.get_running_loop().time() + 100.0)
        finally:
            reaper.close()

    said = {each.name: each for each in asyncio.run(made())}
    assert set(said) == {*host.BUILT_IN, "bad", "crashing", "good", "hanging", "missing", "nonsense", "raising"}
    assert (said["good"].verdict, said["good"].facts) == ("passed", {"acme": "n"})
    assert (said["bad"].verdict, said["bad"].detail) == ("failed", "a fan stands still")
    assert (said["hanging"].verdict, said["hanging"].detail) == (HUNG, "did not end in time")
    assert said["crashing"].verdict == HUNG and "code -6" in said["crashing"].detail
    assert said["raising"].verdict == "unavailable" and "KeyError" in said["raising"].detail
    assert said["missing"].verdict == said["nonsense"].verdict == "unavailable"


def test_reports_are_combined_into_one_finding() -> None:
    """Wrong values take precedence over a crash, a crash over unavailable checks; the slowest device counts."""
    good = [CheckReport(name="matmul", verdict="passed", seconds=1.0, values={"host_to_device_GBps": 20.0})]
    slow = [CheckReport(name="matmul", verdict="passed", seconds=3.0, values={"host_to_device_GBps": 5.0})]
    wrong = [CheckReport(name="matmul", verdict="wrong", detail="device 1: NaN")]
    hung = [CheckReport(name="matmul", verdict="failed", detail="device 1: its check did not end in time")]
    passed, failed = (
        CheckReport(name="exchange", verdict="passed", seconds=2.0),
        CheckReport(name="exchange", verdict="failed"),
    )
    tcp = CheckReport(name="nic-to-nic", verdict="passed", seconds=0.5, values={"GBps": 2.0})
    found = findings([[*good, tcp, passed], [*slow, passed]], [], "exchange")
    assert (found.verdict, found.exchange, found.device_s, found.exchange_s) == ("healthy", "passed", 3.0, 2.0)
    assert found.results[0].values == {"host_to_device_GBps": 5.0, "seconds": 3.0}
    assert found.link_s == 0.5
    unmade = {result.name: result.detail for result in found.results if result.verdict == "unavailable"}
    assert unmade == {
        "device-bandwidth": "not run: the process ended before",
        "all-to-all": "not run: the process ended before",
    }
    assert len(findings([[*good, passed]], [], "exchange", first=False).results) == 2
    assert findings([[*good, passed], [*slow, failed]], [], "exchange").exchange == "failed"
    assert findings([wrong, hung], [], "").verdict == "faulty"
    assert findings([good, hung], [], "").verdict == "failed"
    assert findings(
        [[CheckReport(name="matmul", verdict="unavailable", detail="no torch")]], [], "exchange"
    ) == Findings(
        verdict="unavailable",
        detail="no torch",
        exchange="unavailable",
        results=findings(
            [[CheckReport(name="matmul", verdict="unavailable", detail="no torch")]], [], "exchange"
        ).results,
    )
    split = CheckReport(name="all-to-all", verdict="failed", detail="among the 2 devices: timed out")
    assert findings([[*good, split], [*good, split]], [], "").verdict == "failed"
    assert findings([[*good, attrs.evolve(split, verdict="wrong")], good], [], "").verdict == "faulty"
    summed = CheckReport(name="all-reduce", verdict="failed", detail="with n-o-p: timed out")
    found = findings([[*good, summed]], [], "all-reduce", first=False)
    assert (found.verdict, found.exchange, found.detail) == ("healthy", "failed", "with n-o-p: timed out")
    assert [result.name for result in found.results] == ["matmul", "all-reduce"]
    others = [
        CheckReport(name="nvml", verdict="failed", detail="rows"),
        CheckReport(name="c", verdict="passed", facts={"a": "1"}),
    ]
    assert findings([good], others, "").detail == "nvml: rows" and findings([good], others, "").facts == {"a": "1"}
    assert findings([good], [CheckReport(name="disk", verdict=HUNG)], "").verdict == "failed"


@pytest.mark.parametrize(
    ("told", "code", "verdict", "word"),
    [
        ([], None, "failed", "device 0: its check did not end in time"),
        (
            [CheckReport(name="matmul", verdict="passed"), CheckReport(begun="all-to-all", budget_s=5.0)],
            None,
            "failed",
            "all-to-all: ",
        ),
        (
            [CheckReport(name="matmul", verdict="passed"), CheckReport(begun="all-to-all", budget_s=5.0)],
            -6,
            "failed",
            "code -6",
        ),
        ([CheckReport(name="matmul", verdict="passed")], None, "healthy", "with n-o: it did not end in time"),
        ([CheckReport(name="matmul", verdict="unavailable", detail="no torch")], 0, "unavailable", "no torch"),
    ],
)
def test_the_current_check_of_a_device_is_the_hung_one(
    told: list[CheckReport], code: int | None, verdict: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check of a device is announced with its timeout; the one that does not end is named in the verdict."""
    until: list[float] = []

    async def process(self: HealthCheck, what: str, spec: Any, hear: Any, end: float, files: Any) -> int | None:
        until.extend(hear(each) for each in told)
        return code

    monkeypatch.setattr(HealthCheck, "_process", process)

    async def made() -> Findings:
        reaper = Reaper()
        try:
            command = CheckHealth(round=Round(1), groups=(("n", "o"),), store="127.0.0.1:1", within_s=1000.0)
            return await HealthCheck(reaper, {}, CONTEXT, 1).run(command, "e")
        finally:
            reaper.close()

    monkeypatch.setattr(host, "names", lambda: ())
    found = asyncio.run(made())
    assert found.verdict == verdict and word in found.detail, found
    able = CheckReport(name="matmul", verdict="passed") in told
    assert found.exchange == ("failed" if able else "unavailable")
    if len(until) > 1:
        assert until[1] < until[0], "no check may take the time of all"


class Meeting:
    """The used part of a TCPStore."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}
        self._news = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._news:
            self._known[key] = value.encode()
            self._news.notify_all()

    def get(self, key: str) -> bytes:
        with self._news:
            self._news.wait_for(lambda: key in self._known)
            return self._known[key]


def _spec(node: str, group: tuple[str, ...], address: str = "127.0.0.1") -> DeviceSpec:
    return DeviceSpec(agent=1, device=0, devices=1, node=node, group=group, address=address)


@pytest.mark.parametrize("group", [("a", "b"), ("a", "b", "c")])
def test_tcp_from_node_to_node(group: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node measures data from the previous one, in a pair and in a group of three."""
    monkeypatch.setattr(link, "SEND_S", 0.02)
    meeting = Meeting()
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda node: link.measure(meeting, _spec(node, group)), group))
    for said in found:
        assert (said.name, said.verdict) == ("nic-to-nic", "passed"), said
        assert said.values["GBps"] > 0 and said.seconds > 0


def test_tcp_that_does_not_pass_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused port, an unknown caller instead of the neighbour, a node without an address: no node fails."""
    monkeypatch.setattr(link, "TIMEOUT_S", 0.2)
    assert link.measure(Meeting(), _spec("a", ("a", "b"), "")).verdict == "unavailable"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    meeting = Meeting()
    meeting.set("nic/b", f"{port} {'00' * 16} 127.0.0.1")
    said = link.measure(meeting, _spec("a", ("a", "b")))
    assert said.verdict == "warned" and "to b: ConnectionRefusedError" in said.detail
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        meeting = Meeting()
        meeting.set("nic/b", f"{server.getsockname()[1]} {'00' * 16} 127.0.0.1")
        measured = pool.submit(link.measure, meeting, _spec("a", ("a", "b")))
        at = int(meeting.get("nic/a").split()[0])
        with socket.create_connection(("127.0.0.1", at)) as stranger:
            stranger.sendall(b"x" * 4096)
            taken, _ = server.accept()
            with taken:
                while taken.recv(1 << 20):
                    pass
            said = measured.result()
    assert said.verdict == "warned" and said.detail == "received nothing from b by TCP"
