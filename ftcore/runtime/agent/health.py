"""Carries out a node's health check: starts the checking processes, keeps to their budgets, makes one finding of all.

Each device has a process of its own; the host's checks run one after the other in one more. All are started by exec, in
sessions of their own, and are killed when their time is over: what they had found by then counts, and what they were at
is what did not end. House rule: nothing here raises; what cannot be checked is found ``unavailable``.
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
from ftcore.runtime.agent import processes
from ftcore.runtime.agent.reaper import Reaper
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
    Context,
    DeviceSpec,
    HostSpec,
    Said,
    WatchSpec,
    exchange_of,
)

MARGIN_S: Final = 2.0
"""Before the end of a budget, so that an exchange that waits in vain still says with whom."""

FIRST_S: Final = 20.0
"""A process of the host's checks that has not begun one by then is stuck in an import."""

INSIDE_SHARE: Final = 1 / 8
"""Of a check's budget, how long the devices of a node wait for each other, and then exchange data."""

PROCESSORS_DEVICES: Final = 2
"""Devices that a node without accelerators plays, if it has so many workers: enough to exchange data among them."""

SILENT_S: Final = 60.0
"""The driver has died if the devices' gauges take so long; it is not asked again: who waits for it may never end."""

HUNG: Final = "hung"
"""Of a check that had to be ended, or took its process along: it shows a node that is ill, or a check that is."""

DETAIL_MAX: Final = 500
LINE_MAX: Final = 1 << 16

_DEVICES_CHECKS: Final = (MATMUL, COPIES, ALL_TO_ALL, EXCHANGE, NIC_TO_NIC)
_WORSE: Final = ("passed", "unavailable", "warned", "failed", HUNG, "wrong")

_DEVICES = ("/dev/nvidia[0-9]*", "/dev/davinci[0-9]*", "/dev/accel[0-9]*", "/dev/accel/accel[0-9]*")


def accelerators() -> int:
    """Devices for training that this host has, by what its drivers put into /dev; without any library."""
    found = sum(len(glob.glob(pattern)) for pattern in _DEVICES)
    return found or (len(glob.glob("/dev/dri/renderD*")) if os.path.exists("/dev/kfd") else 0)


class HealthCheck:
    """Checks this node when told.

    Args:
        reaper: waits for the processes.
        env: their environment: the workers', so that a check meets what the training would.
        context: what the host's checks are told.
        slots: workers of this node; so many devices are checked, of one without accelerators a few.
    """

    def __init__(self, reaper: Reaper, env: Mapping[str, str], context: Context, slots: int) -> None:
        self._reaper = reaper
        self._env = dict(env)
        self._context = context
        self._devices = slots if context.devices else min(slots, PROCESSORS_DEVICES)
        self._living: set[int] = set()
        self.accelerators: Final = context.devices

    async def run(self, command: CheckHealth, effect: str) -> Findings:
        """Make the check; cancel it to have its processes ended."""
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
        hosts = [said for each in found[self._devices :] for said in each]
        return findings(found[: self._devices], hosts, exchange_of(command.label) if group else "", base.first)

    async def watch(self, told: Callable[[Said], None]) -> None:
        """Have the accelerators watched in a process of their own until it falls silent or ends, and say why."""
        loop = asyncio.get_running_loop()
        last = ""

        def hear(said: Said) -> float:
            nonlocal last
            last = said.verdict
            told(said)
            return loop.time() + SILENT_S

        try:
            code = await self._process("watch", WatchSpec(agent=os.getpid()), hear, loop.time() + SILENT_S)
        except OSError as error:
            told(Said(name=DEVICES, verdict="unavailable", detail=f"they cannot be watched: {error}"))
            return
        if last != "unavailable":
            why = f"no answer for {SILENT_S:g} s" if code is None else f"what watches them ended with code {code}"
            told(Said(name=DEVICES, verdict="unavailable", detail=why))

    async def _device(self, spec: DeviceSpec, end: float, inside: int) -> list[Said]:
        """What a device's process said; what it did not come to say in time is said for it."""
        loop = asyncio.get_running_loop()
        said: list[Said] = []
        begun: list[str] = []

        def hear(each: Said) -> float:
            if each.begun:
                begun.append(each.begun)
                return min(end, loop.time() + each.budget_s + MARGIN_S)
            said.append(each)
            return end

        code = await self._process("device", spec, hear, end, {INSIDE_FD: inside})
        heard = {each.name: each.verdict for each in said}
        ended = "did not end in time" if code is None else f"ended with code {code}"
        at = next((name for name in begun if name not in heard), "")
        if MATMUL not in heard:
            said.append(Said(name=MATMUL, verdict="failed", detail=f"device {spec.device}: its check {ended}"))
        elif at:
            said.append(Said(name=at, verdict=HUNG, detail=f"device {spec.device}: it {ended}"))
        exchange = exchange_of(spec.label)
        if spec.group and exchange not in heard and heard.get(MATMUL) in ("passed", "wrong"):
            said.append(Said(name=exchange, verdict="failed", detail=f"with {'-'.join(spec.group)}: it {ended}"))
        return said

    async def _host(self, end: float) -> list[Said]:
        """What the host's checks said; one that hangs or crashes is ended, and the rest made without it."""
        loop = asyncio.get_running_loop()
        try:
            left = list(host.names())
        except Exception as error:
            return [Said(name="host", verdict="unavailable", detail=f"installed packages cannot be read: {error}")]
        found: list[Said] = []
        while left and loop.time() < end:
            begun: list[str] = []

            def hear(said: Said, begun: list[str] = begun) -> float:
                if said.begun:
                    begun.append(said.begun)
                    return min(end, loop.time() + said.budget_s)
                found.append(said)
                return min(end, loop.time() + FIRST_S)

            asked = HostSpec(agent=os.getpid(), names=tuple(left), context=self._context)
            code = await self._process("host", asked, hear, min(end, loop.time() + FIRST_S))
            heard = {said.name for said in found}
            at = next((name for name in begun if name not in heard), "")
            if at:
                ended = "did not end in its time" if code is None else f"ended its process with code {code}"
                found.append(Said(name=at, verdict=HUNG, detail=ended))
            elif all(name not in heard for name in left):
                break  # it does not even begin
            left = [name for name in left if name != at and name not in heard]
        return [*found, *(Said(name=name, verdict="unavailable", detail="no time was left for it") for name in left)]

    async def _process(
        self,
        what: str,
        spec: Any,
        hear: Callable[[Said], float],
        until: float,
        files: Mapping[int, int] = MappingProxyType({}),
    ) -> int | None:
        """Run a checking process; ``hear`` takes each line and says until when the next may come.

        ``files`` are further descriptors that it gets: there -> here.

        Returns:
            Its exit code; None if it was ended.
        """
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        order = os.memfd_create("ftcore-check", os.MFD_CLOEXEC)
        os.write(order, protocol.line(spec))
        os.lseek(order, 0, os.SEEK_SET)
        errors = os.memfd_create("ftcore-check-errors", os.MFD_CLOEXEC)
        argv = [sys.executable, "-P", "-m", "ftcore.runtime.checks", what]
        try:
            pid = processes.spawn(argv, self._env, {0: order, 1: writing, 2: errors, **files})
        except OSError as error:
            hear(Said(name=MATMUL if what == "device" else "host", verdict="unavailable", detail=str(error)))
            os.close(reading)
            return 1
        finally:
            os.close(order)
            os.close(writing)
            os.close(errors)
        ended: asyncio.Future[int] = loop.create_future()
        self._living.add(pid)
        self._reaper.watch(pid, lambda code, _mono: _tell(ended, code))
        try:
            return await self._listen(reading, ended, hear, until)
        finally:
            processes.kill(pid, signal.SIGKILL, group=True)
            self._living.discard(pid)

    async def _listen(
        self, reading: int, ended: "asyncio.Future[int]", hear: Callable[[Said], float], until: float
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
                    until = hear(msgspec.json.decode(line, type=Said))
            async with asyncio.timeout_at(until):
                return await asyncio.shield(ended)
        except (TimeoutError, ValueError):
            return None
        finally:
            transport.close()


def _tell(ended: "asyncio.Future[int]", code: int) -> None:
    if not ended.done():
        ended.set_result(code)


def findings(devices: list[list[Said]], others: list[Said], expected: str, first: bool = True) -> Findings:
    """One finding of all that was said.

    Args:
        devices: by device.
        others: of the host's checks.
        expected: the exchange with other nodes that was to be made; empty: none.
        first: the first stage, in which every check is made, or recorded as unavailable.
    """
    said = [said for device in devices for said in device]
    matmul, exchange, tcp = (_named(said, name) for name in (MATMUL, expected, NIC_TO_NIC))
    wrong = [each.detail for each in said if each.verdict == "wrong"]
    wrong += [f"{each.name}: {each.detail}" for each in others if each.verdict == "failed"]
    failed = [_detail(each) for each in said if each.verdict in ("failed", HUNG) and each.name != expected]
    failed += [f"{each.name}: {each.detail}" for each in others if each.verdict == HUNG]
    missing = [each.detail for each in matmul if each.verdict == "unavailable"]
    verdict = "faulty" if wrong else "failed" if failed else "unavailable" if missing else "healthy"
    told = wrong or failed or missing or [each.detail for each in exchange if each.verdict != "passed"]
    facts = {key: value for each in others for key, value in each.facts.items()}
    made = [result for name in (*_DEVICES_CHECKS, ALL_REDUCE) for result in _worst(_named(said, name))]
    if first:
        names = {each.name for each in made}
        unmade = [name for name in _DEVICES_CHECKS if name not in names]
        made += [
            _unmade(name, len(devices), bool(expected), (wrong or failed or missing or [""])[0]) for name in unmade
        ]
    return Findings(
        verdict=verdict,
        detail="; ".join(told)[:DETAIL_MAX],
        exchange=_exchanged([each.verdict for each in exchange], bool(expected)),
        device_s=max((each.seconds for each in matmul), default=0.0),
        exchange_s=max((each.seconds for each in exchange), default=0.0),
        link_s=max((each.seconds for each in tcp), default=0.0),
        results=tuple(map(_result, [*made, *others])),
        facts=facts,
    )


def _named(said: list[Said], name: str) -> list[Said]:
    return [each for each in said if each.name == name]


def _detail(said: Said) -> str:
    return said.detail if said.name == MATMUL else f"{said.name}: {said.detail}"


def _unmade(name: str, devices: int, exchanged: bool, trouble: str) -> Said:
    """Why a check was not made."""
    why = f"not made: {trouble}" if trouble else "it was not come to"
    if name in (EXCHANGE, NIC_TO_NIC) and not exchanged:
        why = "no other node was there to exchange data with"
    elif name == ALL_TO_ALL and devices < 2:
        why = "this node has one device"
    return Said(name=name, verdict="unavailable", detail=why)


def _exchanged(verdicts: list[str], expected: bool) -> str:
    if not expected:
        return ""
    for verdict in ("failed", "unavailable"):
        if verdict in verdicts:
            return verdict
    return "passed" if verdicts else "unavailable"


def _worst(said: list[Said]) -> list[Said]:
    """One of several devices, the worst, with the lowest of each figure."""
    if not said:
        return []
    worst = max(said, key=lambda each: _WORSE.index(each.verdict) if each.verdict in _WORSE else 0)
    lowest: dict[str, float] = {}
    for each in said:
        for name, value in each.values.items():
            lowest[name] = min(value, lowest.get(name, value))
    seconds = max(each.seconds for each in said)
    return [attrs.evolve(worst, values={**lowest, **({"seconds": round(seconds, 4)} if seconds else {})})]


def _result(said: Said) -> CheckResult:
    verdict = "failed" if said.verdict in ("wrong", HUNG) else said.verdict
    return CheckResult(name=said.name, verdict=verdict, detail=said.detail[:DETAIL_MAX], values=said.values)
