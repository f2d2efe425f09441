"""The observer: sends the trace of each incident when it has ended.

A collector that does not answer delays the traces, and drops none: an incident's trace is sent again until it is
accepted, and the log is read on only then. When the observer is to end, each remaining trace gets one try. It
ends with an error if one was not accepted: ``ftctl observe --once`` sends all traces of a log again.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from ftcore import Observed
from ftcore.errors import Unreachable
from ftcore_opentelemetry.traces import IncidentReader, SpanFactory

AGAIN_S: Final = (1.0, 60.0)
"""First and longest pause before a trace is sent again."""

SEND_S: Final = 4.0
"""Time for one try."""

logger = structlog.get_logger()


async def send(endpoint: str | None, observed: Observed, exporter: SpanExporter | None = None) -> None:
    """Send the traces of a job until ``observed.events`` ends.

    Args:
        endpoint: URL to send to; None: that of the SDK's variables.
        observed: the job.
        exporter: replaces that of OTLP over HTTP.

    Raises:
        Unreachable: at the end, the collector has not accepted all traces.
    """
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are reported here, once
    target = exporter or OTLPSpanExporter(endpoint=endpoint, timeout=SEND_S)
    reader, factory = IncidentReader(observed.job), SpanFactory(observed.job)
    lost = 0
    try:
        async for event in observed.events():
            if (spans := reader.feed(event)) and not await _deliver(target, factory.make(spans), observed):
                lost += 1
    finally:
        await asyncio.to_thread(target.shutdown)
    if lost:
        raise Unreachable(f"the collector has not accepted {lost} traces of {observed.job}; send them again later")


async def _deliver(target: SpanExporter, spans: Sequence[ReadableSpan], observed: Observed) -> bool:
    """Send a trace until it is accepted; False: it was not, and the observer is to end."""
    pause_s, told = AGAIN_S[0], False
    while True:
        result = await asyncio.to_thread(target.export, spans)
        if result is SpanExportResult.SUCCESS:
            if told:
                logger.warning("traces are accepted again", job=observed.job)
            return True
        if observed.ending:
            return False
        if not told:
            logger.warning("a trace was not accepted; trying again", job=observed.job, trace=spans[0].name)
            told = True
        await observed.pause(pause_s)
        pause_s = min(2 * pause_s, AGAIN_S[1])
