"""Xids, the device errors of NVIDIA's driver: from the kernel log, or from NVML as they occur.

The kernel log has the full text and all Xids since the host started, but most containers cannot read it. NVML reports
only the number, and only to a process that waits for events. So the kernel log is read where possible, otherwise NVML.

House rule: a past Xid never fails a node. The device may have been reset since, which the log does not show.
"""

import errno
import os
import re
import select
import time
from collections.abc import Iterator
from typing import Any, Final

from ftcore.faults.codes import XIDS, XidKind
from ftcore.runtime.checks import nvml
from ftcore.runtime.checks.protocol import CheckReport, Context

KERNEL: Final = "/dev/kmsg"
RECORD_BYTES: Final = 8192
LINES_MAX: Final = 1000
"""Limit of lines per report; a device that fell off the bus can flood the kernel log."""

_XID = re.compile(r"NVRM: Xid[^:]*\([^)]*\): (\d+)")
_SERIOUS: Final = {code for xid in XIDS if xid.kind in (XidKind.DEVICE, XidKind.CONTAINED) for code in xid.codes}


class KernelLog:
    """The lines of the kernel log that contain an Xid.

    Args:
        past: include earlier lines.

    Raises:
        OSError: the kernel log cannot be read.
    """

    def __init__(self, past: bool) -> None:
        self._fd = os.open(KERNEL, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not past:
            os.lseek(self._fd, 0, os.SEEK_END)

    def close(self) -> None:
        """Close the kernel log."""
        os.close(self._fd)

    def lines(self) -> list[str]:
        """The lines since the last call, without waiting."""
        return [text for text in self._records() if _XID.search(text)][-LINES_MAX:]

    def wait(self, seconds: float) -> list[str]:
        """Wait for lines, at most ``seconds``."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            select.select([self._fd], [], [], left)
            if found := self.lines():
                return found
        return []

    def _records(self) -> Iterator[str]:
        while True:
            try:
                record = os.read(self._fd, RECORD_BYTES)
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten before they were read
                    continue
                return
            if not record:
                return
            for line in record.decode(errors="replace").splitlines():
                yield line.partition(";")[2] or line


class Events:
    """Xids from NVML, as lines in the format of the kernel log.

    Args:
        lib: ``pynvml``, initialised.

    Raises:
        LookupError: no device reports Xids.
    """

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self._set = lib.nvmlEventSetCreate()
        registered = 0
        for index in range(lib.nvmlDeviceGetCount()):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                lib.nvmlDeviceRegisterEvents(handle, lib.nvmlEventTypeXidCriticalError, self._set)
                registered += 1
            except lib.NVMLError:
                continue
        if not registered:
            raise LookupError("no device reports Xids through NVML")

    def wait(self, seconds: float) -> list[str]:
        """Wait for an Xid, at most ``seconds``."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                event = self._lib.nvmlEventSetWait_v2(self._set, max(1, int(left * 1000)))
            except self._lib.NVMLError as error:
                if error.value == self._lib.NVML_ERROR_TIMEOUT:
                    return []
                raise
            if event.eventType == self._lib.nvmlEventTypeXidCriticalError:
                return [f"NVRM: Xid (PCI:{self._place(event.device)}): {event.eventData}, reported by NVML"]
        return []

    def _place(self, handle: Any) -> str:
        try:
            return nvml.string(self._lib.nvmlDeviceGetPciInfo(handle).busId)
        except self._lib.NVMLError:
            return "unknown"


def check(context: Context) -> CheckReport:
    """Xids since the host started; serious ones are a warning."""
    try:
        log = KernelLog(past=True)
    except OSError as error:
        return CheckReport(verdict="unavailable", detail=f"{KERNEL}: {error.strerror}")
    try:
        lines = log.lines()
    finally:
        log.close()
    serious = [line for line in lines if number(line) in _SERIOUS]
    values = {"xids": float(len(lines)), "serious": float(len(serious))}
    if serious:
        return CheckReport(verdict="warned", detail=f"since the host started: {serious[-1][:300]}", values=values)
    return CheckReport(verdict="passed", values=values)


def number(line: str) -> int:
    """The Xid in a line; 0: none."""
    found = _XID.search(line)
    return int(found[1]) if found else 0
