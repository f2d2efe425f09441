"""Reads error files of workers, in torchrun's format (``elastic.multiprocessing.errors``)."""

import json
from typing import Any

from ftcore.events.worker import EVIDENCE_BYTES_MAX, WorkerError

READ_BYTES_MAX = 1 << 20
"""Limit of the bytes read from an error file, which normally has one traceback."""


def read_error_file(path: str) -> WorkerError | None:
    """The error in a file, with bounded texts; None: no file. A file that cannot be parsed becomes the message."""
    try:
        with open(path, "rb") as file:
            body = file.read(READ_BYTES_MAX)
    except OSError:
        return None
    if not body.strip():
        return None
    try:
        message: Any = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        return WorkerError(message=body[: EVIDENCE_BYTES_MAX // 4].decode(errors="replace"))
    if not isinstance(message, dict):
        return WorkerError(message=str(message)[: EVIDENCE_BYTES_MAX // 4])
    extra = message.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    return WorkerError(
        message=str(message.get("message", ""))[: EVIDENCE_BYTES_MAX // 4],
        py_callstack=str(extra.get("py_callstack", ""))[-EVIDENCE_BYTES_MAX // 2 :],
        timestamp=_whole(extra.get("timestamp")),
    )


def _whole(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None
