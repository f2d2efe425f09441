"""Events as CloudEvents 1.0 in the JSON format (https://github.com/cloudevents/spec), one a line.

| attribute | value |
|---|---|
| ``id`` | the log's identity and the position in the log, so that it is unique among all logs of the job's name |
| ``source`` | ``/ftcore/jobs/NAME`` |
| ``type`` | ``ftcore.`` and the event's type, as ``ftcore.worker.failed`` |
| ``subject`` | the node or master that reported or decided it |
| ``time`` | the master's time; in microseconds, ``ftcoretime`` has the nanoseconds |
| ``sequence`` | the position in the log, as the extension of that name defines it |
| ``ftcorekind``, ``ftcoreterm``, ``ftcoreversion``, ``ftcorecause``, ``ftcoreincident`` | as in the event |
| ``data`` | the event's data |
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from ftcore import Event
from ftcore.replay import event_json

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CloudEvents:
    """Converts the events of one log, in order.

    Args:
        job: the job's name.
    """

    def __init__(self, job: str) -> None:
        self._source = f"/ftcore/jobs/{quote(job)}"
        self._log = ""
        self._format = JSONFormat()

    def line(self, event: Event) -> bytes:
        """The next event as a line."""
        self._log = getattr(event.data, "log_id", "") or self._log
        attributes: dict[str, Any] = {
            "specversion": "1.0",
            "id": f"{self._log}/{event.seq}" if self._log else str(event.seq),
            "source": self._source,
            "type": f"ftcore.{event.type}",
            "subject": event.source,
            "time": EPOCH + timedelta(microseconds=event.time // 1000),
            "datacontenttype": "application/json",
            "sequence": f"{event.seq:020}",
            "ftcoretime": str(event.time),
            "ftcorekind": str(event.kind),
            "ftcoreterm": int(event.term),
            "ftcoreversion": event.v,
        }
        if event.cause is not None:
            attributes["ftcorecause"] = int(event.cause)
        if event.incident is not None:
            attributes["ftcoreincident"] = str(event.incident)
        return self._format.write(CloudEvent(attributes, event_json(event)["data"])) + b"\n"
