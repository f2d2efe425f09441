"""Kills the master at a named write; on the path of a test's processes, and idle in all but masters.

The file named by ``KILLPOINT`` holds ``before TYPE`` or ``after TYPE``: the master that writes a group whose fact is of
that type dies before the write, or when it is durable and nobody was told. The file is taken by whoever dies of it.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def _arm(point: Path) -> None:
    from ftcore.events.envelope import Event
    from ftcore.logs.etcd import EtcdLog
    from ftcore.logs.sqlite import SqliteLog

    def die(when: str, events: Sequence[Event]) -> None:
        try:
            wanted = point.read_text()
            if wanted not in {f"{when} {event.type}" for event in events if event.kind == "fact"}:
                return
            point.rename(point.with_suffix(".hit"))
        except OSError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    for backend in (SqliteLog, EtcdLog):
        append = backend.append

        async def killed(self: Any, events: Sequence[Event], _append: Any = append, **options: Any) -> None:
            die("before", events)
            await _append(self, events, **options)
            die("after", events)

        backend.append = killed  # type: ignore[method-assign]


if "ftcore.cli.master" in sys.orig_argv and os.environ.get("KILLPOINT"):
    _arm(Path(os.environ["KILLPOINT"]))
