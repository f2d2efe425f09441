"""The end of ftcore's own processes: signals, exit codes, flushing of output."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ftcore.errors import INTERRUPTED, STOPPED
from ftcore.runtime.logging import PatientStream

FLUSH_S = 1.0
"""Longest wait for a slow console at the end of a process, in seconds."""


def handled_signals(signals: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """The signals to handle: without SIGHUP if it is ignored, as under ``nohup``."""
    hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return tuple(number for number in signals if number != signal.SIGHUP or hung_up)


def signal_code(number: signal.Signals) -> int:
    """The exit code of an ``ftrun`` that was ended by a signal."""
    return INTERRUPTED if number == signal.SIGINT else STOPPED


@contextlib.contextmanager
def patient_stderr() -> Iterator[None]:
    """Make standard error non-blocking: a terminal that is closed or not read must not stop the job.

    Buffered output is written at exit, for at most ``FLUSH_S`` seconds.
    """
    sys.stderr = patient = PatientStream(sys.stderr)
    try:
        yield
    finally:
        patient.drain(FLUSH_S)


def end_process(code: int) -> NoReturn:
    """End this process without waiting for gRPC's threads, which may take seconds."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None by `>&-`
            stream.flush()
    os._exit(code)
