"""Traces of incidents: from recorded logs with an exporter in memory, and over HTTP to a receiver of OTLP."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import structlog
from ftcore_opentelemetry import observe
from ftcore_opentelemetry.adapter import ADAPTER, endpoint
from ftcore_opentelemetry.spans import NS, ORDER, trace_of
from ftcore_opentelemetry.traces import IncidentReader, SpanFactory
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ftcore import Observed, Security
from ftcore.errors import Unreachable, UsageError
from ftcore.logs import open_log
from ftcore.logs.archive import read_events, read_header
from ftcore.replay import Explainer
from ftcore.runtime.wire.transport import GrpcTransport

LOGS = sorted((Path(__file__).parents[3] / "tests/golden/logs").rglob("*.ftlog"))
SHOWN = next(path for path in LOGS if path.stem == "etcd_two_nodes")


def spans_of(path: Path) -> list[list[ReadableSpan]]:
    """The spans of each incident of a log, in an exporter in memory."""
    reader, factory, found = IncidentReader("job"), SpanFactory("job"), []
    for event in read_events(path):
        if spans := reader.feed(event):
            exporter = InMemorySpanExporter()
            exporter.export(factory.make(spans))
            found.append(list(exporter.get_finished_spans()))
    return found


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_spans_have_the_times_of_the_log(path: Path) -> None:
    """A trace for each ended incident, a span for each phase: contiguous, as long as ``ftctl explain`` says."""
    explainer = Explainer()
    for event in read_events(path):
        explainer.feed(event)
    ended = [incident for incident in explainer.incidents() if incident.closed is not None]
    traces = spans_of(path)
    assert len(traces) == len(ended)
    for spans, incident in zip(traces, ended, strict=True):
        whole, *phases = spans
        assert whole.attributes is not None and whole.end_time == incident.closed
        assert whole.attributes["ftcore.incident"] == incident.id
        assert whole.attributes["ftcore.fault.class"] == incident.cls
        known = {name: getattr(incident.phases, name) for name in ORDER}
        assert [span.name for span in phases] == [name for name in ORDER if known[name] is not None]
        at = whole.start_time
        for span in phases:
            assert (
                span.parent is not None and whole.context is not None and span.parent.span_id == whole.context.span_id
            )
            assert span.start_time == at and span.start_time is not None and span.end_time is not None
            assert (span.end_time - span.start_time) / NS == pytest.approx(known[span.name], abs=1e-6)
            at = span.end_time
        assert [event.name for event in whole.events] == [step.type for step in incident.timeline]


def test_a_failed_incident_is_an_error() -> None:
    """The policies restarted it as often as they may, and the job failed."""
    [path] = [path for path in LOGS if path.stem == "budget_spent"]
    [spans] = spans_of(path)
    assert not spans[0].status.is_ok and "the job did not survive it" in str(spans[0].status.description)


def test_the_same_incident_is_the_same_trace() -> None:
    """Sent again, by another process: equal identifiers. Another log or job of equal content: others."""
    [first, *_], [again, *_] = spans_of(SHOWN), spans_of(SHOWN)
    assert [span.context for span in first] == [span.context for span in again]
    explainer = Explainer()
    for event in read_events(SHOWN):
        explainer.feed(event)
    incident = explainer.incidents()[0]
    ids = {trace_of(incident, job, log)[0].trace_id for job in ("a", "b") for log in ("x", "y")}
    assert len(ids) == 4
    spans = trace_of(incident, "a", "x")
    assert len({span.span_id for span in spans}) == len(spans) > 3


class Receiver:
    """A collector's endpoint for OTLP over HTTP.

    Args:
        refuse: how many requests it refuses first.
    """

    def __init__(self, refuse: int = 0) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.paths: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.paths.append(self.path)
                if len(receiver.paths) <= refuse:
                    self.send_error(400)
                    return
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    values = resource.resource.attributes
                    receiver.resources.append({value.key: value.value.string_value for value in values})
                    receiver.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def receiving(refuse: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(refuse)
    try:
        yield receiver
    finally:
        receiver.close()


def test_a_finished_job_is_sent_over_http() -> None:
    """``ftctl observe --once``: each incident's spans arrive, with the job as resource; it ends at the log's end."""
    with receiving() as receiver:
        url = f"otlp://127.0.0.1:{receiver.port}"
        argv = [sys.executable, "-m", "ftcore.cli.ftctl", "--store", f"file:{SHOWN}", "observe", "--once", url]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("FTCORE_", "OTEL_"))}
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        assert set(receiver.paths) == {"/v1/traces"}
        names = [span.name for span in receiver.spans if not span.parent_span_id]
        assert names == ["fault signal-preemption", "fault user-code", "fault node-lost"]
        assert receiver.resources[0]["service.name"] == "ftcore"
        assert receiver.resources[0]["service.instance.id"] == read_header(SHOWN).job
        expected = [span for spans in spans_of(SHOWN) for span in spans]
        assert [(span.name, span.start_time_unix_nano, span.end_time_unix_nano) for span in receiver.spans] == [
            (span.name, span.start_time, span.end_time) for span in expected
        ]


def observed_until_delivered(exporter: SpanExporter | None, url: str | None, traces: list[Any], count: int) -> None:
    """Observe the recorded log as a live one, until that many spans have arrived."""

    async def main() -> None:
        over = asyncio.Event()
        log = await open_log(f"file:{SHOWN}", read_header(SHOWN).job)
        observed = Observed(log, Security(), GrpcTransport(Security()), over)
        task = asyncio.create_task(observe.send(url, observed, exporter))
        async with asyncio.timeout(60):
            while len(traces) < count:
                await asyncio.sleep(0.01)
        over.set()
        await task
        await log.close()

    asyncio.run(main())


def test_a_collector_that_refuses_gets_every_trace_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning, then another try; nothing is lost, and the order stays."""
    monkeypatch.setattr(observe, "AGAIN_S", (0.01, 0.02))
    with receiving(refuse=3) as receiver, structlog.testing.capture_logs() as lines:
        expected = sum(map(len, spans_of(SHOWN)))
        observed_until_delivered(None, f"http://127.0.0.1:{receiver.port}/v1/traces", receiver.spans, expected)
        assert len(receiver.spans) == expected
    told = [line["event"].partition(";")[0] for line in lines]
    assert told == ["a trace was not accepted", "traces are accepted again"]


class Refusing(SpanExporter):
    """Accepts nothing."""

    def __init__(self) -> None:
        self.tries: list[int] = []

    def export(self, spans: Any) -> SpanExportResult:
        self.tries.append(len(spans))
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        pass


def test_the_end_of_the_job_does_not_wait_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each remaining trace gets one try, and the process ends, with an error."""
    monkeypatch.setattr(observe, "AGAIN_S", (60.0, 60.0))
    exporter = Refusing()
    with pytest.raises(Unreachable, match="has not accepted 3 traces"):
        observed_until_delivered(exporter, None, exporter.tries, 1)
    assert len(exporter.tries) == 4


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("otlp://collector", "http://collector:4318/v1/traces"),
        ("otlp://[::1]:9/", "http://[::1]:9/v1/traces"),
        ("otlps://collector:443/otlp/v1/traces", "https://collector:443/otlp/v1/traces"),
        ("otlp:", None),
    ],
)
def test_urls(url: str, expected: str | None) -> None:
    assert endpoint(url) == expected


@pytest.mark.parametrize("url", ["otlp://h:x", "otlp://h:9?a=b", "otlp:h", "otlp://u@h:9"])
def test_wrong_urls(url: str) -> None:
    with pytest.raises(UsageError, match="expected otlp://HOST:PORT"):
        ADAPTER.check(url)
