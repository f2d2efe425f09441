"""HTTP of the page: its files, ``GET /view`` (the view as JSON) and ``GET /events`` (views as server-sent events).

The page's files hold nothing of the job and need no token; the view needs one, as ``Authorization: Bearer TOKEN``: that
of the page, or the job's. Security is else the job's: its certificates, if it has some. ``GET /-/healthy`` answers
without a token.

House rules: nothing is written or changed by a request. Requests are served in threads, at most ``REQUESTS_MAX`` at
once, each for a limited time, and at most ``STREAMS_MAX`` streams. A client that does not read is cut off after
``SEND_S``; until then it holds one thread, and what fits into its socket. Certificates are read again when their files
change.
"""

import contextlib
import hmac
import ssl
import threading
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from socket import AF_INET, AF_INET6, SHUT_RDWR, SO_SNDBUF, SOL_SOCKET, socket
from typing import Any, Final

import attrs
import structlog

from ftcore.live.page.streams import Board, Published

REQUESTS_MAX: Final = 16
STREAMS_MAX: Final = 64
REQUEST_S: Final = 10.0
"""A request, its handshake included, must be complete within that time."""

SEND_S: Final = 10.0
"""A client of a stream must read within that time."""

SILENCE_S: Final = 5.0
"""A stream says something that often, so that its reader notices a dead connection."""

SEND_BUFFER: Final = 256 * 1024
"""Bytes that the kernel may hold for a client of a stream."""

TEXT: Final = "text/plain; charset=utf-8"

_FILES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class PageCertificates:
    """Files of the server's side of TLS.

    Args:
        cert: the certificate chain.
        key: its key.
        clients: the authority of the clients' certificates; None: clients need none.
        optional: clients may come without one.
    """

    cert: Path
    key: Path
    clients: Path | None
    optional: bool = False

    def stamp(self) -> tuple[int, ...]:
        """Changes when a file changes; raises ``OSError`` if one cannot be read."""
        found = [self.cert, self.key, *([self.clients] if self.clients is not None else [])]
        return tuple(file.stat().st_mtime_ns for file in found)

    def context(self) -> ssl.SSLContext:
        """The TLS configuration; raises ``OSError`` or ``ssl.SSLError`` if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if self.clients is not None and not self.optional:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.clients)
        return context


class PageServer:
    """An HTTP server in threads of its own.

    Args:
        host: address to listen on.
        port: port to listen on; 0: a free one.
        board: the newest view.
        tokens: each of them is accepted; empty: none is demanded.
        certificates: for TLS; None: unencrypted.

    Raises:
        OSError: it cannot listen there, or a certificate cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        board: Board,
        *,
        tokens: Sequence[str] = (),
        certificates: PageCertificates | None = None,
    ) -> None:
        handler = type("_Handler", (_PageRequests,), {"board": board, "tokens": tuple(tokens)})
        self._board = board
        self._server = (_PageListener6 if ":" in host else _PageListener)((host, port), handler, certificates)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening, and end the streams."""
        self._board.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _RequestPlace:
    """A place among the requests that are served at once; it is left once."""

    def __init__(self, places: threading.BoundedSemaphore) -> None:
        self._places: threading.BoundedSemaphore | None = places

    def leave(self) -> None:
        places, self._places = self._places, None
        if places is not None:
            places.release()


def _cut_off(connection: socket) -> None:
    """End a request that takes too long."""
    with contextlib.suppress(OSError):
        connection.shutdown(SHUT_RDWR)


class _PageListener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    address_family = AF_INET
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: Any, certificates: PageCertificates | None) -> None:
        self._certificates = certificates
        self._context = certificates.context() if certificates is not None else None
        self._stamp = certificates.stamp() if certificates is not None else ()
        self.requests = threading.BoundedSemaphore(REQUESTS_MAX)
        self.turn = threading.local()
        self.streams = threading.BoundedSemaphore(STREAMS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread; if all are busy, close the connection."""
        if not self.requests.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Shake hands, and serve the request; a stream gives its place among the requests back."""
        served, place = request, _RequestPlace(self.requests)
        limit = threading.Timer(REQUEST_S, lambda: _cut_off(served))
        limit.daemon = True
        limit.start()
        self.turn.place, self.turn.limit = place, limit
        try:
            served.settimeout(REQUEST_S)
            served = self._wrapped(request)
            if isinstance(served, ssl.SSLSocket):
                served.do_handshake()
        except OSError:
            self.shutdown_request(served)
        else:
            super().process_request_thread(served, client_address)
        finally:
            limit.cancel()
            place.leave()

    def _wrapped(self, request: socket) -> Any:
        if self._certificates is None or self._context is None:
            return request
        try:
            if (stamp := self._certificates.stamp()) != self._stamp:
                self._context, self._stamp = self._certificates.context(), stamp
        except OSError as error:
            logger.warning("cannot reload certificates; the old ones stay in use", error=str(error))
        return self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the job."""


class _PageListener6(_PageListener):
    address_family = AF_INET6


@cache
def _asset(name: str) -> bytes:
    return (files("ftcore.live.page") / "assets" / name).read_bytes()


class _PageRequests(BaseHTTPRequestHandler):
    board: Board
    tokens: tuple[str, ...] = ()
    timeout = REQUEST_S
    server_version = "ftcore"
    sys_version = ""
    server: _PageListener

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        if path in _FILES:
            name, kind = _FILES[path]
            self._answer(HTTPStatus.OK, kind, _asset(name))
        elif path == "/-/healthy":
            self._answer(HTTPStatus.OK, TEXT, b"ok\n")
        elif not self._permitted():
            self._answer(HTTPStatus.UNAUTHORIZED, TEXT, b"send the token of the page: Authorization: Bearer TOKEN\n")
        elif path == "/view":
            found = self.board.newer(self.board.number, REQUEST_S / 2)
            if found is None:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"nothing was read yet\n")
            else:
                self._answer(HTTPStatus.OK, "application/json", found.body)
        elif path == "/events":
            self._stream()
        else:
            self._answer(HTTPStatus.NOT_FOUND, TEXT, b"the page is at /, its data at /view and /events\n")

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def _permitted(self) -> bool:
        if not self.tokens:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        found = [hmac.compare_digest(given.strip().encode(), token.encode()) for token in self.tokens]
        return scheme.lower() == "bearer" and any(found)

    def _stream(self) -> None:
        """Send views until the client or the board ends it."""
        if not self.server.streams.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"too many pages are open\n")
            return
        try:
            self.server.turn.limit.cancel()
            self.server.turn.place.leave()
            self.connection.settimeout(SEND_S)
            self.connection.setsockopt(SOL_SOCKET, SO_SNDBUF, SEND_BUFFER)
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("X-Accel-Buffering", "no")  # asks proxies not to hold it back
            self.end_headers()
            self._send_views()
        finally:
            self.server.streams.release()

    def _send_views(self) -> None:
        number = self.board.number
        while True:
            found = self.board.newer(number, SILENCE_S)
            if found is not None:
                number = found.number
                self.wfile.write(_as_event(found))
            elif self.board.closed:
                return
            else:
                self.wfile.write(b": no change\n\n")

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a page that is open is no event."""


def _as_event(found: Published) -> bytes:
    """A view as a server-sent event; its JSON has no line break."""
    return b"id: %d\nevent: view\ndata: %b\n\n" % (found.seq, found.body)
