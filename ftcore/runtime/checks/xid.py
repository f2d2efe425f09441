"""Xids, the errors that NVIDIA's driver reports of a device: from the kernel's log, or from NVML as they happen.

The kernel's log has them in words, and those since the host started, but is closed to most containers; NVML tells the
number, and only while somebody waits for it. So the log is read where it may be, else NVML is waited for.

House rule: an Xid of the past fails nobody. The device may have been reset since, and the log does not say.
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
from ftcore.runtime.checks.protocol import Context, Said

KERNEL: Final = "/dev/kmsg"
RECORD_BYTES: Final = 8192
LINES_MAX: Final = 1000
"""Lines of the kernel that are told at a time; a device that is off the bus can fill its log."""

_XID = re.compile(r"NVRM: Xid[^:]*\([^)]*\): (\d+)")
_SERIOUS: Final = {code for xid in XIDS if xid.kind in (XidKind.DEVICE, XidKind.CONTAINED) for code in xid.codes}


class KernelLog:
    """The lines of the kernel's log that speak of an Xid.

    Args:
        past: also those that are in it already.

    Raises:
        OSError: it may not be read.
    """

    def __init__(self, past: bool) -> None:
        self._fd = os.open(KERNEL, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not past:
            os.lseek(self._fd, 0, os.SEEK_END)

    def close(self) -> None:
        """Read no more."""
        os.close(self._fd)

    def lines(self) -> list[str]:
        """What came since the last call; never waits."""
        return [text for text in self._records() if _XID.search(text)][-LINES_MAX:]

    def wait(self, seconds: float) -> list[str]:
        """What came, after at most so many seconds."""
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
    """Xids as NVML tells them, in the kernel's words.

    Args:
        lib: ``pynvml``, initialised.

    Raises:
        LookupError: no device tells them.
    """

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self._set = lib.nvmlEventSetCreate()
        told = 0
        for index in range(lib.nvmlDeviceGetCount()):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                lib.nvmlDeviceRegisterEvents(handle, lib.nvmlEventTypeXidCriticalError, self._set)
                told += 1
            except lib.NVMLError:
                continue
        if not told:
            raise LookupError("no device tells of Xids through NVML")

    def wait(self, seconds: float) -> list[str]:
        """What came, after at most so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                event = self._lib.nvmlEventSetWait_v2(self._set, max(1, int(left * 1000)))
            except self._lib.NVMLError as error:
                if error.value == self._lib.NVML_ERROR_TIMEOUT:
                    return []
                raise
            if event.eventType == self._lib.nvmlEventTypeXidCriticalError:
                return [f"NVRM: Xid (PCI:{self._place(event.device)}): {event.eventData}, told by NVML"]
        return []

    def _place(self, handle: Any) -> str:
        try:
            return nvml.string(self._lib.nvmlDeviceGetPciInfo(handle).busId)
        except self._lib.NVMLError:
            return "unknown"


def check(context: Context) -> Said:
    """Xids since the host started; serious ones are a warning."""
    try:
        log = KernelLog(past=True)
    except OSError as error:
        return Said(verdict="unavailable", detail=f"{KERNEL}: {error.strerror}")
    try:
        lines = log.lines()
    finally:
        log.close()
    serious = [line for line in lines if number(line) in _SERIOUS]
    values = {"xids": float(len(lines)), "serious": float(len(serious))}
    if serious:
        return Said(verdict="warned", detail=f"since the host started: {serious[-1][:300]}", values=values)
    return Said(verdict="passed", values=values)


def number(line: str) -> int:
    """The Xid that a line tells of; 0: none."""
    found = _XID.search(line)
    return int(found[1]) if found else 0
