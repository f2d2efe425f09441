"""``acme:FILE``: append a line to a file whenever a machine was too hot."""

from pathlib import Path

from ftcore import Observed, ObserverAdapter
from ftcore.errors import UsageError


def path_of(url: str) -> Path:
    """The file in the URL."""
    text = url.partition(":")[2]
    if not text:
        raise UsageError(f"{url}: expected acme:FILE, for example acme:/var/log/heat")
    return Path(text)


async def observe(url: str, job: Observed) -> None:
    """Read the log until the job ends."""
    with path_of(url).open("a") as file:
        async for event in job.events():
            if event.type == "incident.opened" and event.data.fault.detail == "too-hot":
                print(f"{job.job}: event {event.seq}: too hot", file=file, flush=True)


ADAPTER = ObserverAdapter(run=observe, check=path_of)
