"""The endpoint: what it answers, to whom, and what it does when it cannot listen. And URLs."""

import asyncio
import contextlib
import http.client
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import trustme
from ftcore_prometheus import endpoint as endpoints
from ftcore_prometheus import observe
from ftcore_prometheus.adapter import ADAPTER, EndpointUrl, parse
from ftcore_prometheus.endpoint import REQUESTS_MAX, Certificates, Endpoint
from ftcore_prometheus.families import JobMetrics
from ftcore_prometheus.figures import JobFigures
from prometheus_client import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from ftcore import Observed, Security
from ftcore.errors import LogUnavailable, UsageError
from ftcore.logs import open_log
from ftcore.logs.archive import read_events
from ftcore.runtime.wire.transport import GrpcTransport

LOG = next((Path(__file__).parents[3] / "tests/golden/logs").rglob("etcd_two_nodes.ftlog"))
LABEL = '{training_job="etcd-two-nodes"}'
TOKEN = "a-token-of-the-job"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def metrics() -> JobMetrics:
    figures = JobFigures()
    for event in read_events(LOG):
        figures.feed(event)
    return JobMetrics("demo", figures)


@contextlib.contextmanager
def serving(metrics: JobMetrics, **options: object) -> Iterator[Endpoint]:
    endpoint = Endpoint("127.0.0.1", 0, lambda: metrics, **options)  # type: ignore[arg-type]
    try:
        yield endpoint
    finally:
        endpoint.close()


def get(
    port: int, path: str = "/metrics", context: ssl.SSLContext | None = None, **headers: str
) -> tuple[int, str, str]:
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    more = {} if context is None else {"context": context}
    connection = kind("localhost" if context else "127.0.0.1", port, timeout=10, **more)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_formats(metrics: JobMetrics) -> None:
    """Text as Prometheus reads it, and OpenMetrics for who asks for it; promtool finds no fault."""
    with serving(metrics) as endpoint:
        status, kind, text = get(endpoint.port)
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        status, kind, opened = get(endpoint.port, Accept=OPENMETRICS)
        assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert opened.endswith("# EOF\n")
    names = {family.name for family in text_string_to_metric_families(opened)}
    assert {"ftcore_restarts", "ftcore_recovery_phase_seconds"} <= names
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_token_is_demanded(metrics: JobMetrics) -> None:
    """Without the job's token, or with another one: 401, and no figure. Health needs none."""
    with serving(metrics, token=TOKEN) as endpoint:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            status, _, text = get(endpoint.port, **headers)
            assert status == 401 and "ftcore_" not in text
        assert get(endpoint.port, "/other")[0] == 401
        assert get(endpoint.port, "/-/healthy")[0] == 200
        authorized = {"Authorization": f"Bearer {TOKEN}"}
        assert get(endpoint.port, **authorized)[0] == 200
        assert get(endpoint.port, "/other", **authorized)[0] == 404


def test_tls_with_and_without_a_clients_certificate(metrics: JobMetrics, tmp_path: Path) -> None:
    """The job's certificates: who shows none is refused where the job demands one. New files are used at once."""
    authority = trustme.CA()
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"

    def issue(signer: trustme.CA) -> None:
        own = signer.issue_cert("localhost")
        own.private_key_pem.write_to_path(key)
        own.cert_chain_pems[0].write_to_path(cert)
        signer.cert_pem.write_to_path(ca)

    def client(signer: trustme.CA, shown: bool) -> ssl.SSLContext:
        context = ssl.create_default_context()
        signer.configure_trust(context)
        if shown:
            signer.issue_cert("prometheus").configure_cert(context)
        return context

    issue(authority)
    with serving(metrics, certificates=Certificates(cert=cert, key=key, clients=ca)) as endpoint:
        assert get(endpoint.port, context=client(authority, True))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            get(endpoint.port, context=client(authority, False))
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            get(endpoint.port)
        renewed = trustme.CA()
        issue(renewed)
        assert get(endpoint.port, context=client(renewed, True))[0] == 200
    with serving(metrics, certificates=Certificates(cert=cert, key=key, clients=None)) as endpoint:
        assert get(endpoint.port, context=client(renewed, False))[0] == 200


def test_idle_clients_do_not_pile_up(metrics: JobMetrics) -> None:
    """Connections beyond the limit are closed at once; when one of the others ends, requests are served again."""
    with serving(metrics) as endpoint:
        idle = [socket.create_connection(("127.0.0.1", endpoint.port)) for _ in range(REQUESTS_MAX)]
        with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10) as one_more:
            assert one_more.recv(1) == b""
        for each in idle:
            each.close()
        for _ in range(1000):
            with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):
                assert get(endpoint.port)[0] == 200
                break
        else:
            pytest.fail("no request is served after the idle ones have gone")


def test_a_slow_client_is_cut_off(metrics: JobMetrics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that never stops sending: no single operation of it takes long."""
    monkeypatch.setattr(endpoints, "REQUEST_S", 0.5)
    with serving(metrics) as endpoint, socket.create_connection(("127.0.0.1", endpoint.port), timeout=30) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        with pytest.raises(OSError):
            while True:
                slow.sendall(b"x")
                time.sleep(0.01)


def test_an_error_is_an_answer(metrics: JobMetrics) -> None:
    """A mistake in the figures is a failed scrape, which Prometheus shows; the endpoint lives on."""

    def fail() -> JobMetrics:
        raise KeyError("ftcore_unknown")

    endpoint = Endpoint("127.0.0.1", 0, fail)
    try:
        with structlog.testing.capture_logs() as lines:
            assert get(endpoint.port)[0] == 500
        assert lines[0]["event"] == "cannot compute the metrics"
        assert get(endpoint.port, "/-/healthy")[0] == 200
    finally:
        endpoint.close()


def test_an_outage_of_the_log_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing is appended: a reader that follows the log waits for its store by itself."""
    monkeypatch.setattr(observe, "LOOK_EVERY_S", 0.01)
    is_unreachable = True

    class Reached(Observed):
        async def last_seq(self) -> int:
            if is_unreachable:
                raise LogUnavailable("the store is unreachable")
            return 0

    async def main() -> None:
        nonlocal is_unreachable
        log = await open_log(f"file:{LOG}", "etcd-two-nodes")
        observer = observe.JobObserver(Reached(log, Security()), 128)

        async def until(value: str) -> None:
            async with asyncio.timeout(30):
                while f"ftcore_log_readable{LABEL} {value}" not in generate_latest(observer.metrics()).decode():
                    await asyncio.sleep(0.01)

        looking = asyncio.create_task(observer.look())
        await until("0.0")
        is_unreachable = False
        await until("1.0")
        looking.cancel()
        await log.close()

    asyncio.run(main())


def run_observer(monkeypatch: pytest.MonkeyPatch, security: Security, **options: Path) -> list[dict[str, object]]:
    """Observe a finished log on a port that is free only later; returns the log lines."""
    monkeypatch.setattr(observe, "LISTEN_AGAIN_S", 0.05)
    other = socket.create_server(("127.0.0.1", 0))
    port = other.getsockname()[1]

    async def scrape() -> tuple[int, str, str]:
        while True:
            with contextlib.suppress(OSError):
                return await asyncio.to_thread(lambda: get(port, Authorization=f"Bearer {TOKEN}"))
            await asyncio.sleep(0.05)

    async def main() -> None:
        over = asyncio.Event()
        log = await open_log(f"file:{LOG}", "etcd-two-nodes")
        observed = Observed(log, security, GrpcTransport(security), over)
        task = asyncio.create_task(observe.serve(EndpointUrl(host="127.0.0.1", port=port, **options), observed))
        while not any("cannot listen" in str(line["event"]) for line in lines):
            await asyncio.sleep(0.01)
        other.close()
        async with asyncio.timeout(30):
            status, _, text = await scrape()
            assert status == 200
            while 'ftcore_restarts_total{cause="node-lost",training_job="etcd-two-nodes"} 1.0' not in text:
                _, _, text = await scrape()
            assert "ftcore_master_up" in text and "ftcore_log_behind_events" in text
            over.set()
            await task
        await log.close()

    with structlog.testing.capture_logs() as lines:
        asyncio.run(main())
    return lines


def test_a_taken_port_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning for all tries, and the endpoint is there once the port is free. A job without a token: it says so."""
    lines = run_observer(monkeypatch, Security())
    assert sum("cannot listen" in str(line["event"]) for line in lines) == 1
    assert sum("no token" in str(line["event"]) for line in lines) == 1
    assert {line["log_level"] for line in lines} == {"warning"}


def test_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prometheus need not have the job's token."""
    own = tmp_path / "token"
    own.write_text(f"{TOKEN}\n")
    lines = run_observer(monkeypatch, Security(token="the-token-of-the-job"), token_file=own)
    assert not any("no token" in str(line["event"]) for line in lines)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("prometheus:", EndpointUrl(host="127.0.0.1", port=9400)),
        ("prometheus://0.0.0.0", EndpointUrl(host="0.0.0.0", port=9400)),
        ("prometheus://[::]:9500/?groups=8", EndpointUrl(host="::", port=9500, groups=8)),
        ("prometheus://h:1?token_file=/t", EndpointUrl(host="h", port=1, token_file=Path("/t"))),
    ],
)
def test_urls(url: str, expected: EndpointUrl) -> None:
    assert parse(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("prometheus://h:x", "expected prometheus://HOST:PORT"),
        ("prometheus://h:9/metrics", "expected prometheus://HOST:PORT"),
        ("prometheus://h:9?group=1", "found the option 'group'; expected groups or token_file"),
        ("prometheus://h:9?groups=0", "groups: found '0'; expected a number, at least 1"),
    ],
)
def test_wrong_urls(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        ADAPTER.check(url)


def test_problems_of_this_host(tmp_path: Path) -> None:
    """``ftrun`` warns of a taken port and a missing file before the job starts."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert "cannot listen there now" in ADAPTER.problem(f"prometheus://127.0.0.1:{port}")
    assert ADAPTER.problem("prometheus://127.0.0.1:0") == ""
    assert "is no file" in ADAPTER.problem(f"prometheus://127.0.0.1:0?token_file={tmp_path}/none")
