"""``ftctl export --format acme``: each event as a line of JSON."""

import json
from collections.abc import AsyncIterator
from typing import Any

from ftcore import Event, ExportFormat
from ftcore.replay import event_json


async def write(job: str, events: AsyncIterator[Event], output: Any) -> None:
    """Write one line for each event; ``output`` has a method ``write`` for bytes."""
    async for event in events:
        output.write(json.dumps({"job": job, **event_json(event)}).encode() + b"\n")


FORMAT = ExportFormat(write=write, name="a file of JSON lines", begins=b'{"job": ')
