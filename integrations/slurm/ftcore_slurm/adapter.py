"""The platform ``slurm:JOB`` (``ftrun --platform``), and its option.

``poll`` sets the seconds between two looks at the nodes: ``slurm:4711?poll=10``.
"""

from typing import Final
from urllib.parse import parse_qsl

import attrs

from ftcore import Platform, PlatformAdapter
from ftcore.errors import UsageError

POLL_S: Final = 5.0


@attrs.frozen
class SlurmUrl:
    """The parts of a URL.

    Args:
        job: Slurm's number of the job, with that of the member of an array: ``4711_3``.
        poll_s: seconds between two looks.
    """

    job: str
    poll_s: float


def parse(url: str) -> SlurmUrl:
    """Read a URL.

    Raises:
        UsageError: it is wrong.
    """
    job, _, query = url.partition(":")[2].partition("?")
    if not job.replace("_", "", 1).isdigit():
        raise UsageError(f"{url}: expected slurm:JOB with Slurm's number of the job, as slurm:4711")
    options = dict(parse_qsl(query, keep_blank_values=True))
    try:
        poll_s = float(options.pop("poll", str(POLL_S)))
    except ValueError:
        poll_s = 0.0
    if not 0 < poll_s < float("inf") or options:
        raise UsageError(f"{url}: expected no option but poll=SECONDS")
    return SlurmUrl(job, poll_s)


def _open(url: str, name: str) -> Platform:
    from ftcore_slurm.platform import SlurmPlatform

    return SlurmPlatform(parse(url))


ADAPTER = PlatformAdapter(open=_open, check=parse)
