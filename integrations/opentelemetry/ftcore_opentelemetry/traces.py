"""Incidents of a log as spans of OpenTelemetry's SDK."""

from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Status, StatusCode

from ftcore import Event, __version__
from ftcore.replay import Explainer
from ftcore_opentelemetry.spans import SpanData, trace_of

INCIDENTS_KEPT: Final = 4

EVENTS_MAX: Final = 256
"""Events of a span: the timeline of an incident has at most 200."""

_ENDS: Final = ("incident.resolved", "incident.exhausted")


class IncidentReader:
    """Reads a log and gives the trace of each incident when it has ended.

    Args:
        job: the job's name.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._log = ""
        self._explainer = Explainer(keep=INCIDENTS_KEPT)

    def feed(self, event: Event) -> list[SpanData]:
        """The spans of the incident that ends with this event; empty: none does.

        Raises:
            FtcoreError: the event is of a newer ftcore, or contradicts the events before it.
        """
        self._log = self._log or getattr(event.data, "log_id", "")
        self._explainer.feed(event)
        if event.type not in _ENDS:
            return []
        incident = self._explainer.newest()
        if incident is None or incident.id != event.incident or incident.closed is None:
            return []
        return trace_of(incident, self._job, self._log)


class SpanFactory:
    """Makes spans of the SDK from data.

    Args:
        job: the job's name, as ``service.instance.id``; ``service.name`` is ``ftcore``, unless ``OTEL_SERVICE_NAME`` or
            ``OTEL_RESOURCE_ATTRIBUTES`` says otherwise.
    """

    def __init__(self, job: str) -> None:
        self._ids = _GivenIds()
        self._ended = _Ended()
        own = {"service.name": "ftcore", "service.instance.id": job, "service.version": __version__}
        given = Resource.create()
        unnamed = str(given.attributes.get("service.name", "")).startswith("unknown_service")
        resource = given.merge(Resource(own)) if unnamed else Resource(own).merge(given)
        limits = SpanLimits(max_events=EVENTS_MAX)
        self._provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False, span_limits=limits
        )
        self._provider.add_span_processor(self._ended)
        self._tracer = self._provider.get_tracer("ftcore", __version__)

    def make(self, spans: Sequence[SpanData]) -> list[ReadableSpan]:
        """The spans of one incident, ended; the first one is the parent of the others."""
        parent: trace.Span | None = None
        for data in spans:
            self._ids.next = data
            context = trace.set_span_in_context(parent) if parent is not None else Context()
            span = self._tracer.start_span(data.name, context, start_time=data.start, attributes=data.attributes)
            for moment in data.moments:
                fields: dict[str, str | int] = {"ftcore.text": moment.text, "ftcore.seq": moment.seq}
                span.add_event(moment.name, fields, timestamp=moment.time)
            if data.error:
                span.set_status(Status(StatusCode.ERROR, data.error))
            span.end(data.end)
            parent = parent or span
        return self._ended.take()


class _GivenIds(IdGenerator):
    next: SpanData

    def generate_span_id(self) -> int:
        return self.next.span_id

    def generate_trace_id(self) -> int:
        return self.next.trace_id


class _Ended(SpanProcessor):
    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans
