"""The server of the live page: what it answers, to whom, and what a slow or hostile client costs."""

import asyncio
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from ftcore.errors import UsageError
from ftcore.live.page import publish, server
from ftcore.live.page.access import page_link, page_token
from ftcore.live.page.adapter import ADAPTER
from ftcore.live.page.server import PageCertificates, PageServer
from ftcore.live.page.streams import Board
from ftcore.live.page.url import PageUrl, parse
from ftcore.logs import open_log
from ftcore.ports import Candidate
from ftcore.runtime.observers import Observed, observer
from ftcore.runtime.wire.security import Security
from ftcore.testing.driver import JobDriver

TOKEN = "a-token-of-the-job"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
PATIENCE_S = 30.0


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[tuple[int, Board]]:
    board = Board()
    made = PageServer("127.0.0.1", 0, board, **options)
    try:
        yield made.port, board
    finally:
        made.close()


@contextlib.contextmanager
def asked(
    port: int, path: str, context: ssl.SSLContext | None = None, **headers: str
) -> Iterator[http.client.HTTPResponse]:
    kind = http.client.HTTPConnection if context is None else http.client.HTTPSConnection
    more = {} if context is None else {"context": context}
    connection = kind("localhost" if context else "127.0.0.1", port, timeout=PATIENCE_S, **more)
    try:
        connection.request("GET", path, headers=headers)
        yield connection.getresponse()
    finally:
        connection.close()


def get(port: int, path: str, context: ssl.SSLContext | None = None, **headers: str) -> tuple[int, str]:
    with asked(port, path, context, **headers) as answer:
        return answer.status, answer.read().decode()


def test_a_token_is_demanded_for_what_is_the_jobs() -> None:
    """Without a token, or with a wrong one: 401 and nothing of the job. The page's own files hold nothing of it."""
    with serving(tokens=(page_token(TOKEN), TOKEN)) as (port, board):
        for path in ("/view", "/events", "/other"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                assert get(port, path, **headers)[0] == 401
        for path in ("/", "/page.js", "/page.css", "/-/healthy"):
            assert get(port, path)[0] == 200
        for token in (page_token(TOKEN), TOKEN):
            assert get(port, "/other", Authorization=f"Bearer {token}")[0] == 404
        assert get(port, "/../server.py")[0] == 401
        ready = threading.Thread(target=_publish_soon, args=(board, b'{"job":"demo"}'))
        ready.start()
        assert get(port, "/view", **AUTHORIZED) == (200, '{"job":"demo"}')
        ready.join()


def _publish_soon(board: Board, body: bytes) -> None:
    while not board.has_readers:
        time.sleep(0.005)
    board.publish(1, body)


def test_headers_forbid_scripts_of_others() -> None:
    """Nothing but the page's own files is loaded, no page embeds it, and nothing is stored."""
    with serving() as (port, _):
        for path in ("/", "/page.js", "/events-not-there"):
            with asked(port, path) as answer:
                policy = answer.getheader("Content-Security-Policy", "")
                assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
                assert answer.getheader("X-Content-Type-Options") == "nosniff"
                assert answer.getheader("Cache-Control") == "no-store"
        assert all(word not in get(port, "/page.js")[1] for word in ("innerHTML", "insertAdjacentHTML", "eval("))


def test_only_reading_is_possible() -> None:
    """No other method is answered."""
    with serving() as (port, _):
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request(method, "/view", body=b"{}")
            assert connection.getresponse().status == 501
            connection.close()


def read_event(answer: http.client.HTTPResponse) -> dict[str, str]:
    """The next server-sent event, comments left out."""
    fields: dict[str, str] = {}
    while True:
        read = answer.fp.readline().decode()
        if not read:
            raise EOFError
        line = read.rstrip("\n")
        if not line and fields:
            return fields
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def test_a_stream_has_the_newest_view_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets the view of now, and then each newest one; it ends when the observer ends."""
    monkeypatch.setattr(server, "SILENCE_S", 0.05)
    with serving() as (port, board):
        board.publish(1, b"old")
        with asked(port, "/events") as answer:
            assert answer.getheader("Content-Type") == "text/event-stream"
            assert answer.fp.readline() == b": no change\n"  # so that a dead connection is noticed
            for seq in (2, 3, 4):
                board.publish(seq, b"{}")
            found = read_event(answer)
            while found["id"] != "4":
                found = read_event(answer)
            board.close()
            assert b"data" not in answer.fp.read()


def test_a_client_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds one thread for a limited time; others get every view meanwhile."""
    monkeypatch.setattr(server, "SEND_S", 0.5)
    monkeypatch.setattr(server, "SEND_BUFFER", 4096)
    with serving() as (port, board), socket.create_connection(("127.0.0.1", port)) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /events HTTP/1.0\r\n\r\n")
        while not board.has_readers:
            time.sleep(0.005)
        with asked(port, "/events") as answer:
            sent, deadline = 0, time.monotonic() + PATIENCE_S
            newest = read_in_thread(answer)
            while serving_threads() > 1 or sent < 20:  # until the thread of the deaf client has ended
                sent += 1
                while newest() < sent:  # again until it arrives: a reader gets views that are made after it came
                    board.publish(sent, b"x" * 100_000)
                    time.sleep(0.005)
                    assert time.monotonic() < deadline
            board.close()


def serving_threads() -> int:
    """The threads that serve a request now."""
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def read_in_thread(answer: http.client.HTTPResponse) -> Callable[[], int]:
    """Read a stream to its end; returns the number of the newest event that it had."""
    numbers = [0]

    def read() -> None:
        with contextlib.suppress(EOFError):
            while True:
                numbers.append(int(read_event(answer)["id"]))

    threading.Thread(target=read).start()
    return lambda: numbers[-1]


def answers_again(port: int) -> None:
    """Wait for an answer: the server counts a request a little longer than its client, and a busy machine is slow."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            assert get(port, "/-/healthy")[0] == 200
            return
        except ConnectionError:
            assert time.monotonic() < deadline


def test_streams_and_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """More streams than permitted are refused with a reason; connections that say nothing do not add up."""
    monkeypatch.setattr(server, "STREAMS_MAX", 2)
    monkeypatch.setattr(server, "REQUESTS_MAX", 2)
    monkeypatch.setattr(server, "REQUEST_S", 0.5)
    with serving() as (port, _), asked(port, "/events"), asked(port, "/events"):
        assert get(port, "/events") == (503, "too many pages are open\n")
        answers_again(port)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        for each in silent:  # two are closed at once, two after the limit
            each.settimeout(PATIENCE_S)
            assert each.recv(1) == b""
            each.close()
        answers_again(port)


def test_tls_as_the_job_demands_it(tmp_path: Path) -> None:
    """A client without a certificate is refused, unless the page was told that browsers have none."""
    authority = trustme.CA()
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    own = authority.issue_cert("localhost")
    own.private_key_pem.write_to_path(key)
    own.cert_chain_pems[0].write_to_path(cert)
    authority.cert_pem.write_to_path(ca)

    def client(shown: bool) -> ssl.SSLContext:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        if shown:
            authority.issue_cert("browser").configure_cert(context)
        return context

    with serving(certificates=PageCertificates(cert=cert, key=key, clients=ca)) as (port, _):
        assert get(port, "/-/healthy", client(True))[0] == 200
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            get(port, "/-/healthy", client(False))
    files = PageCertificates(cert=cert, key=key, clients=ca, optional=True)
    with serving(certificates=files) as (port, _):
        assert get(port, "/-/healthy", client(False))[0] == 200


def test_tokens_of_the_page() -> None:
    """The page's token follows from the job's; the job's cannot be computed from it."""
    token = page_token(TOKEN)
    assert token == page_token(TOKEN) != page_token(TOKEN + "x") and TOKEN not in token
    assert page_link("https://head:9401", TOKEN) == f"https://head:9401/#token={token}"
    assert page_link("http://[::1]:9401/", "") == "http://[::1]:9401/"
    for wrong in ("head:9401", "ftp://head", "https://head/x", "https://head?x", "http://[::1"):
        with pytest.raises(UsageError, match="expected the address of the page"):
            page_link(wrong, TOKEN)


def test_urls(tmp_path: Path) -> None:
    """The parts of a URL and its options; what is wrong with it is said."""
    assert parse("page:") == PageUrl(host="127.0.0.1", port=9401)
    found = parse(f"page://[::1]:80?token_file={tmp_path}/t&client_certificate=optional")
    assert found == PageUrl(host="::1", port=80, token_file=tmp_path / "t", client_optional=True)
    for wrong, why in (
        ("page://h:x", "expected page://HOST:PORT"),
        ("page://h/path", "expected page://HOST:PORT"),
        ("page://h?colour=red", "found the option 'colour'"),
        ("page://h?client_certificate=no", "expected optional"),
    ):
        with pytest.raises(UsageError, match=why):
            parse(wrong)
    assert observer("page:") is ADAPTER
    assert "is no file on this host" in ADAPTER.problem(f"page://127.0.0.1:0?token_file={tmp_path}/t")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot listen there now" in ADAPTER.problem(f"page://127.0.0.1:{taken.getsockname()[1]}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_the_observer_serves_the_job_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for its port, follows the log, and its last view shows the end of the job."""
    warned: list[str] = []
    monkeypatch.setattr(publish, "logger", SimpleNamespace(warning=lambda text, **_: warned.append(text)))
    driver, over = JobDriver(nodes=2, tick_s=0.02), asyncio.Event()
    driver.start()
    driver.make_steps(3)
    driver.fail("node1", message="RuntimeError: \x1b[31m<b>")

    async def main() -> list[dict[str, Any]]:
        log = await open_log(f"sqlite://{tmp_path}", "demo", create=True)
        leadership = await log.campaign(Candidate(host="h", pid=1, address="unix:nowhere"))

        async def add(groups: list[Any]) -> None:
            for group in groups:
                await log.append(group, term=leadership.term, expected_seq=await log.last_seq())

        await add(driver.groups)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = PageUrl(host="127.0.0.1", port=taken.getsockname()[1])
            observed = Observed(log, Security(token=TOKEN), over=over)
            task = asyncio.create_task(publish.serve_page(url, observed))
            while not any("cannot listen" in text for text in warned):
                await asyncio.sleep(0.01)
        views = asyncio.create_task(asyncio.to_thread(stream, url.port))
        while not found:
            await asyncio.sleep(0.01)
        before = len(driver.groups)
        driver.settle()
        driver.finish()
        driver.settle()
        await add(driver.groups[before:])
        over.set()
        await task
        await views
        await log.close()
        return found

    found: list[dict[str, Any]] = []

    def stream(port: int) -> None:
        while True:
            try:
                with asked(port, "/events", **AUTHORIZED) as answer:
                    while True:
                        found.append(json.loads(read_event(answer)["data"]))
                        if found[-1]["ended"]:
                            return
            except (ConnectionRefusedError, EOFError):
                time.sleep(0.02)

    asyncio.run(main())
    assert found[0]["state"] == "recovering" and found[0]["open_incident"]["id"] == "i1"
    assert found[0]["open_incident"]["summary"].endswith("RuntimeError:  [31m<b>")
    assert (found[-1]["state"], found[-1]["open_incident"]) == ("succeeded", None)
