"""``ftctl export --format prometheus|openmetrics``: the metrics of a log, also of a finished job.

They are those that the job's endpoint served at its end; what only a running master knows, such as step times, is left
out.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ftcore import Event, ExportFormat, ExportOutput

if TYPE_CHECKING:
    from ftcore_prometheus.families import JobMetrics


async def _prometheus(job: str, events: AsyncIterator[Event], output: ExportOutput) -> None:
    from prometheus_client import generate_latest

    output.write(generate_latest(await _metrics(job, events)))


async def _openmetrics(job: str, events: AsyncIterator[Event], output: ExportOutput) -> None:
    from prometheus_client.exposition import choose_encoder

    encode, _ = choose_encoder("application/openmetrics-text; version=1.0.0")
    output.write(encode(await _metrics(job, events)))


async def _metrics(job: str, events: AsyncIterator[Event]) -> "JobMetrics":
    from ftcore.replay import read_async
    from ftcore_prometheus.families import JobMetrics
    from ftcore_prometheus.figures import JobFigures

    figures = JobFigures()
    await read_async(events, figures)
    return JobMetrics(job, figures)


PROMETHEUS = ExportFormat(write=_prometheus, name="a file of Prometheus metrics", begins=b"# HELP ftcore_")
OPENMETRICS = ExportFormat(write=_openmetrics, name="a file of OpenMetrics", begins=b"# HELP ftcore_")
