"""Event log of torchrun's agents: one JSON object per line (``torchrun --event-log-handler``).

The format is that of ``torch/distributed/elastic/events/api.py`` and of ``SimpleElasticAgent._construct_event`` in
PyTorch 2.13. PyTorch writes 0 as the time of all of them, so an event has the time of its exception, or of the line
before it. An agent reports ``SUCCEEDED`` also after workers have failed: it means that the agent itself had no error.
Pure.
"""

from typing import Any, Final

import msgspec

from ftcore.importing.launcher import LauncherLine
from ftcore.importing.model import Act, SourceTime
from ftcore.importing.torchrun import failure_of

MARK: Final = '"torchelastic.worker.status.'
"""What every such line has."""


class ElasticEvents:
    """Reads the events of one agent, in order."""

    def __init__(self) -> None:
        self._failed: set[int] = set()

    def read(self, line: str) -> LauncherLine | None:
        """What a line says; None: it is no event, or says nothing that is kept.

        Args:
            line: the line, perhaps with a prefix.
        """
        begin = line.find("{")
        if begin < 0 or MARK not in line:
            return None
        try:
            event: Any = msgspec.json.decode(line[begin:])
            about = event["metadata"]
            more = msgspec.json.decode(about.get("metadata") or "{}")
            return self._read(event["source"], about["state"], about, more)
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError, RecursionError):
            return None

    def _read(self, source: str, state: str, about: dict[str, Any], more: dict[str, Any]) -> LauncherLine | None:
        attempt = int(about.get("agent_restarts") or 0)
        host = str(about.get("hostname") or "")
        if source == "AGENT" and state == "RENDEZVOUS":
            return LauncherLine(act=Act.STARTED, fields={"host": host}, begins=True, attempt=attempt)
        if source == "AGENT" and state in ("SUCCEEDED", "FAILED"):
            if state == "SUCCEEDED" and attempt not in self._failed:
                return LauncherLine(act=Act.FINISHED, fields={"host": host}, attempt=attempt)
            text = "torchrun's agent ended, no restart is left"
            fields = {"outcome": "failed", "code": 1, "source": "torchrun", "text": text}
            return LauncherLine(act=Act.ENDED, fields=fields, attempt=attempt)
        if source == "WORKER" and state == "FAILED":
            self._failed.add(attempt)
            return LauncherLine(act=Act.FAILED, attempt=attempt, **_failure(about, more, host))
        if source == "WORKER" and state == "START":
            return LauncherLine(act=Act.STARTED, fields=_worker(about, more, host), attempt=attempt)
        return None


def _worker(about: dict[str, Any], more: dict[str, Any], host: str) -> dict[str, Any]:
    """The place of a worker. Before it has ended, its process is only in ``worker_id``."""
    number = about.get("worker_id")
    return {
        "host": host,
        "rank": _number(about.get("global_rank")),
        "local_rank": _number(more.get("local_rank")),
        "pid": int(number) if isinstance(number, str) and number.isdecimal() else 0,
    }


def _failure(about: dict[str, Any], more: dict[str, Any], host: str) -> dict[str, Any]:
    """The fields and the time of a failed worker."""
    found = failure_of(str(about.get("raw_error") or "").encode())
    text, callstack, when = found if found is not None else ("", "", SourceTime())
    fields = {
        **_worker(about, more, host),
        "code": _number(more.get("exit_code")),
        "text": "" if text == NO_MESSAGE else text,
        "callstack": callstack,
    }
    return {"fields": fields, "when": when if when.ns is not None else None}


NO_MESSAGE: Final = "<NONE>"
"""Message of a worker that left no error file."""


def _number(value: Any) -> int | None:
    """A number; torchrun writes some as a list of one."""
    first = value[0] if isinstance(value, list) and value else value
    return int(first) if isinstance(first, int) else None
