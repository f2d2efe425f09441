"""Keeps ``abnormal_global_norm.json`` in the checkpoint directory: steps with an abnormal global norm, and its values.

    {"2": [45.7, 45.71], "310": [6.4]}

The key is the step; its values are the norm, and the norm after the step was computed again, if that was abnormal as
well (null: not finite). The values are folded state, so a new master or run writes the same file again, and entries of
earlier logs stay in it.

House rules: no other work waits for the file or fails with it. It is replaced as a whole; a link, a device or any other
special file in its place is left alone.
"""

import asyncio
import contextlib
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.events.envelope import Event
from ftcore.events.worker import FaultObserved
from ftcore.states.model import JobState
from ftcore.states.norms import NORM

NORMS_FILE = "abnormal_global_norm.json"

CLOSE_S = 5.0
"""How long the end of a term waits for a write in progress."""

RETRY_S = 30.0
"""Seconds from a failed write to the next try; at the end of the term there is a last one."""

logger = structlog.get_logger()

Values = Mapping[str, Sequence[float | None]]


class NormsFile:
    """Writes the file of one term, in a thread."""

    def __init__(self) -> None:
        self._values: Values | None = None
        self._written: Values | None = None
        self._url = ""
        self._closes = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def committed(self, batch: Sequence[Event], state: JobState) -> None:
        """Have the file written if a durable batch may have changed it, or if it is the first of this term.

        Args:
            batch: the events.
            state: the state after them.
        """
        changes = any(isinstance(event.data, FaultObserved) and event.data.kind == NORM for event in batch)
        if self._values is not None and not changes:
            return
        self._values = {str(step): norm.values for step, norm in state.training.norms.items()}
        self._url = state.spec.checkpoints if state.spec is not None else ""
        if self._values and self._url and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._values is not None and self._values != self._written:
            values, is_last = self._values, self._closes.is_set()
            try:
                await asyncio.to_thread(update, self._url, values)
                self._written = values
            except (CheckpointError, OSError) as error:
                logger.warning("cannot write the abnormal norms; training goes on", error=str(error))
                if is_last:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S):
                        await self._closes.wait()

    async def close(self) -> None:
        """Wait for a write in progress, and try a failed one once more."""
        self._closes.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._task


def update(url: str, values: Values) -> None:
    """Write the values to the file, with the entries that it has for other steps.

    Args:
        url: the directory, or a URL of fsspec.
        values: the values by step.

    Raises:
        CheckpointError: it cannot be read or written, or something else has its name.
    """
    storage = Storage(url)
    where = storage.where(NORMS_FILE)
    if _is_special(where):
        raise CheckpointError(f"{where} is no regular file; remove it, or the values stay in the event log alone")
    before = _read(storage) if storage.exists(NORMS_FILE) else {}
    merged = dict(sorted({**before, **values}.items(), key=lambda entry: (len(entry[0]), entry[0])))
    storage.write(NORMS_FILE, [json.dumps(merged).encode() + b"\n"])


def _is_special(where: str) -> bool:
    path = Path(where.removeprefix("file://").removeprefix("local://")).expanduser()
    try:
        return not stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False  # it does not exist, or is no local file


def _read(storage: Storage) -> dict[str, Sequence[float | None]]:
    try:
        found = json.loads(storage.read(NORMS_FILE))
    except ValueError:
        logger.warning("the file of abnormal norms is damaged; it is replaced", path=storage.where(NORMS_FILE))
        return {}
    return found if isinstance(found, dict) else {}
