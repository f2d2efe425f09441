"""Where this stands in ``PYTHONPATH``, Python's wall clock is ``CLOCK_OFF_S`` seconds off.

A kernel has one wall clock for all namespaces, and libfaketime breaks ``time.sleep``. grpc reads the clock here to tell
its C core a deadline, which looks at the kernel's: it keeps that one, as it would have one clock on a real host.
"""

import os
import sys
import time

_true = {"time": time.time, "time_ns": time.time_ns}
_off = int(os.environ.get("CLOCK_OFF_S", "0"))


def _time() -> float:
    of_grpc = sys._getframe(1).f_globals.get("__name__", "").startswith("grpc")
    return _true["time"]() + (0 if of_grpc else _off)


time.time = _time
time.time_ns = lambda: int(_true["time_ns"]()) + _off * 10**9
