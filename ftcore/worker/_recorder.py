"""Answers the agent's question which collectives this process has begun, from torch's flight recorder.

The main thread of a rank that waits in a collective cannot answer: it is inside a call of C++ without the GIL. So a
thread waits on a pipe, which costs nothing. The agent finds the pipe and the memfd of the answer by their descriptors
on the progress page, and opens them through ``/proc/PID/fd``. The answer is one line of JSON, see ``shm/calls.py``,
and below it the newest entries of the recorder.

House rules: a failure ends the thread, never the script. The recorder is a private part of torch: without it, or if it
is switched off (``TORCH_FR_BUFFER_SIZE=0``), there is no answer.
"""

import json
import os
import sys
import threading
from typing import Any, Final

from ftcore.shm.calls import MEMFD, calls_of, encoded
from ftcore.worker._sections import sections

_DUMPS: Final = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
ENTRIES_MAX: Final = 64
_started: list[int] = []


def start() -> None:
    """Start the thread, once per process; does nothing if torch has no recorder."""
    words = sections().words
    if words is None or _started == [os.getpid()] or not _dumps():
        return
    _started[:] = [os.getpid()]
    ask, keep = os.pipe()
    answer = os.memfd_create(MEMFD, os.MFD_CLOEXEC)
    threading.Thread(target=_answer, args=(ask, keep, answer), daemon=True, name="ftcore-recorder").start()
    words.records_calls(ask, answer)


def _answer(ask: int, _keep: int, answer: int) -> None:
    try:
        while os.read(ask, 64):
            text = recorded()
            os.pwrite(answer, text, 0)
            os.ftruncate(answer, len(text))
    except Exception:  # another version of torch, or the script closed a descriptor: the rank's calls stay unknown
        return


def recorded() -> bytes:
    """Return the answer: the newest collective of each process group, and the newest entries."""
    entries: list[dict[str, Any]] = []
    for dump in _dumps():
        entries += json.loads(dump(True, False)).get("entries", [])
    newest = entries[-ENTRIES_MAX:]
    return encoded(calls_of(entries)) + json.dumps(newest, indent=1).encode()


def _dumps() -> list[Any]:
    module = sys.modules.get("torch._C._distributed_c10d")
    return [dump for dump in (getattr(module, name, None) for name in _DUMPS) if dump is not None]
