"""Runs a node's health check: starts the checking processes, enforces their timeouts, and combines their results.

Each device has its own process; the host's checks run one after the other in another one. All are started by exec, in
their own sessions, and are killed at their timeout: results until then count, and the current check counts as hung.

House rule: nothing here raises; a check that cannot run is ``unavailable``.
"""

import asyncio
import contextlib
import glob
import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs
import msgspec

from ftcore.commands import CheckHealth
from ftcore.engine.actions import Findings
from ftcore.events.node import CheckResult
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.checks import host, protocol
from ftcore.runtime.checks.protocol import (
    ALL_REDUCE,
    ALL_TO_ALL,
    COPIES,
    DEVICES,
    EXCHANGE,
    INSIDE_FD,
    MATMUL,
    NIC_TO_NIC,
    CheckReport,
    Context,
    DeviceSpec,
    HostSpec,
    WatchSpec,
    exchange_of,
)

MARGIN_S: Final = 2.0
"""Time between the timeout of an exchange and that of its process, so that the exchange can report its peers."""

FIRST_S: Final = 20.0
"""A process of the host's checks that begins no check within this time hangs in an import."""

INSIDE_SHARE: Final = 1 / 8
"""Share of a check's timeout for the exchange among the devices of the node."""

PROCESSORS_DEVICES: Final = 2
"""Number of checked CPU devices on a node without accelerators (limited by its workers): enough for an exchange."""

SILENT_S: Final = 60.0
"""Timeout of the devices' gauges; the driver then counts as dead and is not queried again, because a query may hang."""

HUNG: Final = "hung"
"""Verdict of a check that had to be killed or ended its process."""

DETAIL_MAX: Final = 500
LINE_MAX: Final = 1 << 16

_DEVICES_CHECKS: Final = (MATMUL, COPIES, ALL_TO_ALL, EXCHANGE, NIC_TO_NIC)
_WORSE: Final = ("passed", "unavailable", "warned", "failed", HUNG, "wrong")

_DEVICES = ("/dev/nvidia[0-9]*", "/dev/davinci[0-9]*", "/dev/accel[0-9]*", "/dev/accel/accel[0-9]*")


def accelerators() -> int:
    """Number of accelerators of this host, by its device files."""
    found = sum(len(glob.glob(pattern)) for pattern in _DEVICES)
    return found or (len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0)


class HealthCheck:
    """Checks this node on request.

    Args:
        reaper: waits for the processes.
        env: environment of the workers, which the checks use, too.
        context: argument of the host's checks.
        slots: workers of this node; one device per worker is checked, without accelerators at most
            ``PROCESSORS_DEVICES``.
    """

    def __init__(self, reaper: Reaper, env: Mapping[str, str], context: Context, slots: int) -> None:
        self._reaper = reaper
        self._env = dict(env)
        self._context = context
        self._devices = slots if context.devices else min(slots, PROCESSORS_DEVICES)
        self._living: set[int] = set()
        self.accelerators: Final = context.devices

    async def run(self, command: CheckHealth, effect: str) -> Findings:
        """Run the check; cancelling it kills its processes."""
        end = asyncio.get_running_loop().time() + command.within_s
        group = command.groups[0] if command.groups and command.store else ()
        base = DeviceSpec(
            agent=os.getpid(),
            device=0,
            devices=self._devices,
            node=self._context.node,
            group=group,
            label=command.label,
            store=command.store,
            prefix=f"ftcore-check/{effect}/{'-'.join(group)}",
            within_s=max(1.0, command.within_s / 2 - MARGIN_S),
            address=self._context.address,
            first=command.stage == 1,
            inside_s=command.within_s * INSIDE_SHARE,
        )
        inside = os.memfd_create("ftcore-check-inside", os.MFD_CLOEXEC)
        try:
            devices = [self._device(attrs.evolve(base, device=index), end, inside) for index in range(self._devices)]
            others = [self._host(end)] if base.first else []
            found = await asyncio.gather(*devices, *others)
        finally:
            os.close(inside)
            for pid in list(self._living):
                processes.kill(pid, signal.SIGKILL, group=True)
        hosts = [report for reports in found[self._devices :] for report in reports]
        return findings(found[: self._devices], hosts, exchange_of(command.label) if group else "", base.first)

    async def watch(self, on_report: Callable[[CheckReport], None]) -> None:
        """Watch the accelerators in a separate process until it becomes silent or ends; then report the reason."""
        loop = asyncio.get_running_loop()
        last = ""

        def receive(report: CheckReport) -> float:
            nonlocal last
            last = report.verdict
            on_report(report)
            return loop.time() + SILENT_S

        try:
            code = await self._process("watch", WatchSpec(agent=os.getpid()), receive, loop.time() + SILENT_S)
        except OSError as error:
            on_report(CheckReport(name=DEVICES, verdict="unavailable", detail=f"cannot watch the devices: {error}"))
            return
        if last != "unavailable":
            why = f"no answer for {SILENT_S:g} s" if code is None else f"the watching process ended with code {code}"
            on_report(CheckReport(name=DEVICES, verdict="unavailable", detail=why))

    async def _device(self, spec: DeviceSpec, end: float, inside: int) -> list[CheckReport]:
        """The reports of a device's process, with added reports for checks that did not end."""
        loop = asyncio.get_running_loop()
        reports: list[CheckReport] = []
        begun: list[str] = []

        def receive(report: CheckReport) -> float:
            if report.begun:
                begun.append(report.begun)
                return min(end, loop.time() + report.budget_s + MARGIN_S)
            reports.append(report)
            return end

        code = await self._process("device", spec, receive, end, {INSIDE_FD: inside})
        verdicts = {report.name: report.verdict for report in reports}
        ended = "did not end in time" if code is None else f"ended with code {code}"
        current = next((name for name in begun if name not in verdicts), "")
        if MATMUL not in verdicts:
            reports.append(
                CheckReport(name=MATMUL, verdict="failed", detail=f"device {spec.device}: its check {ended}")
            )
        elif current:
            reports.append(CheckReport(name=current, verdict=HUNG, detail=f"device {spec.device}: it {ended}"))
        exchange = exchange_of(spec.label)
        if spec.group and exchange not in verdicts and verdicts.get(MATMUL) in ("passed", "wrong"):
            reports.append(
                CheckReport(name=exchange, verdict="failed", detail=f"with {'-'.join(spec.group)}: it {ended}")
            )
        return reports

    async def _host(self, end: float) -> list[CheckReport]:
        """The reports of the host's checks; a check that hangs or crashes is killed, and the others still run."""
        loop = asyncio.get_running_loop()
        try:
            left = list(host.names())
        except Exception as error:
            return [CheckReport(name="host", verdict="unavailable", detail=f"cannot read installed packages: {error}")]
        found: list[CheckReport] = []
        while left and loop.time() < end:
            begun: list[str] = []

            def receive(report: CheckReport, begun: list[str] = begun) -> float:
                if report.begun:
                    begun.append(report.begun)
                    return min(end, loop.time() + report.budget_s)
                found.append(report)
                return min(end, loop.time() + FIRST_S)

            spec = HostSpec(agent=os.getpid(), names=tuple(left), context=self._context)
            code = await self._process("host", spec, receive, min(end, loop.time() + FIRST_S))
            done = {report.name for report in found}
            current = next((name for name in begun if name not in done), "")
            if current:
                ended = "did not end in time" if code is None else f"ended its process with code {code}"
                found.append(CheckReport(name=current, verdict=HUNG, detail=ended))
            elif all(name not in done for name in left):
                break  # the process cannot begin any check
            left = [name for name in left if name != current and name not in done]
        return [
            *found,
            *(CheckReport(name=name, verdict="unavailable", detail="no time was left for it") for name in left),
        ]

    async def _process(
        self,
        kind: str,
        spec: Any,
        receive: Callable[[CheckReport], float],
        until: float,
        files: Mapping[int, int] = MappingProxyType({}),
    ) -> int | None:
        """Run a checking process.

        Args:
            kind: ``device``, ``host`` or ``watch``.
            spec: the spec for its stdin.
            receive: processes each line; returns the deadline of the next line, in seconds of the loop's clock.
            until: deadline of the first line.
            files: further descriptors; see ``processes.spawn``.

        Returns:
            The exit code; None if the process was killed.
        """
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        order = os.memfd_create("ftcore-check", os.MFD_CLOEXEC)
        os.write(order, protocol.line(spec))
        os.lseek(order, 0, os.SEEK_SET)
        errors = os.memfd_create("ftcore-check-errors", os.MFD_CLOEXEC)
        argv = [sys.executable, "-P", "-m", "ftcore.runtime.checks", kind]
        try:
            pid = processes.spawn(argv, self._env, {0: order, 1: writing, 2: errors, **files})
        except OSError as error:
            receive(CheckReport(name=MATMUL if kind == "device" else "host", verdict="unavailable", detail=str(error)))
            os.close(reading)
            return 1
        finally:
            os.close(order)
            os.close(writing)
            os.close(errors)
        ended: asyncio.Future[int] = loop.create_future()
        self._living.add(pid)
        self._reaper.watch(pid, lambda code, _mono: _set_result(ended, code))
        try:
            return await self._listen(reading, ended, receive, until)
        finally:
            processes.kill(pid, signal.SIGKILL, group=True)
            self._living.discard(pid)

    async def _listen(
        self, reading: int, ended: "asyncio.Future[int]", receive: Callable[[CheckReport], float], until: float
    ) -> int | None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_MAX)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", buffering=0)
        )
        try:
            while True:
                async with asyncio.timeout_at(until):
                    line = await reader.readline()
                if not line:
                    break
                with contextlib.suppress(msgspec.MsgspecError):
                    until = receive(msgspec.json.decode(line, type=CheckReport))
            async with asyncio.timeout_at(until):
                return await asyncio.shield(ended)
        except (TimeoutError, ValueError):
            return None
        finally:
            transport.close()


def _set_result(ended: "asyncio.Future[int]", code: int) -> None:
    if not ended.done():
        ended.set_result(code)


def findings(
    devices: list[list[CheckReport]], others: list[CheckReport], expected: str, first: bool = True
) -> Findings:
    """Combine reports into one finding.

    Args:
        devices: reports of each device.
        others: reports of the host's checks.
        expected: name of the expected exchange with other nodes; empty: none.
        first: whether this is the first stage, in which every check runs or is recorded as unavailable.
    """
    reports = [report for device in devices for report in device]
    matmul, exchange, tcp = (_named(reports, name) for name in (MATMUL, expected, NIC_TO_NIC))
    wrong = [each.detail for each in reports if each.verdict == "wrong"]
    wrong += [f"{each.name}: {each.detail}" for each in others if each.verdict == "failed"]
    failed = [_detail(each) for each in reports if each.verdict in ("failed", HUNG) and each.name != expected]
    failed += [f"{each.name}: {each.detail}" for each in others if each.verdict == HUNG]
    missing = [each.detail for each in matmul if each.verdict == "unavailable"]
    verdict = "faulty" if wrong else "failed" if failed else "unavailable" if missing else "healthy"
    details = wrong or failed or missing or [each.detail for each in exchange if each.verdict != "passed"]
    facts = {key: value for each in others for key, value in each.facts.items()}
    made = [result for name in (*_DEVICES_CHECKS, ALL_REDUCE) for result in _worst(_named(reports, name))]
    if first:
        names = {each.name for each in made}
        unmade = [name for name in _DEVICES_CHECKS if name not in names]
        made += [
            _unmade(name, len(devices), bool(expected), (wrong or failed or missing or [""])[0]) for name in unmade
        ]
    return Findings(
        verdict=verdict,
        detail="; ".join(details)[:DETAIL_MAX],
        exchange=_exchanged([each.verdict for each in exchange], bool(expected)),
        device_s=max((each.seconds for each in matmul), default=0.0),
        exchange_s=max((each.seconds for each in exchange), default=0.0),
        link_s=max((each.seconds for each in tcp), default=0.0),
        results=tuple(map(_result, [*made, *others])),
        facts=facts,
    )


def _named(reports: list[CheckReport], name: str) -> list[CheckReport]:
    return [each for each in reports if each.name == name]


def _detail(report: CheckReport) -> str:
    return report.detail if report.name == MATMUL else f"{report.name}: {report.detail}"


def _unmade(name: str, devices: int, exchanged: bool, trouble: str) -> CheckReport:
    """A report of a check that did not run, with the reason."""
    why = f"not run: {trouble}" if trouble else "not run: the process ended before"
    if name in (EXCHANGE, NIC_TO_NIC) and not exchanged:
        why = "no other node to exchange data with"
    elif name == ALL_TO_ALL and devices < 2:
        why = "this node has one device"
    return CheckReport(name=name, verdict="unavailable", detail=why)


def _exchanged(verdicts: list[str], expected: bool) -> str:
    if not expected:
        return ""
    for verdict in ("failed", "unavailable"):
        if verdict in verdicts:
            return verdict
    return "passed" if verdicts else "unavailable"


def _worst(reports: list[CheckReport]) -> list[CheckReport]:
    """The worst report of several devices, with the lowest of each value."""
    if not reports:
        return []
    worst = max(reports, key=lambda each: _WORSE.index(each.verdict) if each.verdict in _WORSE else 0)
    lowest: dict[str, float] = {}
    for each in reports:
        for name, value in each.values.items():
            lowest[name] = min(value, lowest.get(name, value))
    seconds = max(each.seconds for each in reports)
    return [attrs.evolve(worst, values={**lowest, **({"seconds": round(seconds, 4)} if seconds else {})})]


def _result(report: CheckReport) -> CheckResult:
    verdict = "failed" if report.verdict in ("wrong", HUNG) else report.verdict
    return CheckResult(name=report.name, verdict=verdict, detail=report.detail[:DETAIL_MAX], values=report.values)
