"""How ftcore's own processes end: exit codes, and what is still printed."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ftcore.errors import INTERRUPTED, STOPPED
from ftcore.runtime.logging import PatientStream

FLUSH_S = 1.0
"""How long the end waits for a console that reads slowly."""


def obeyed(signals: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Those of the signals that ask ``ftrun`` to end: not SIGHUP under ``nohup``, which has it ignored."""
    hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return tuple(number for number in signals if number != signal.SIGHUP or hung_up)


def signal_code(number: signal.Signals) -> int:
    """The exit code of an ``ftrun`` that a signal ended."""
    return INTERRUPTED if number == signal.SIGINT else STOPPED


@contextlib.contextmanager
def patient_stderr() -> Iterator[None]:
    """Have standard error neither wait nor fail meanwhile: a terminal that is closed or not read must not stop the job.

    What was printed is written at the end, for at most ``FLUSH_S``.
    """
    sys.stderr = patient = PatientStream(sys.stderr)
    try:
        yield
    finally:
        patient.drain(FLUSH_S)


def end_process(code: int) -> NoReturn:
    """End this process at once: gRPC's threads have nothing to say any more, and may take seconds to say it."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None by `>&-`
            stream.flush()
    os._exit(code)
