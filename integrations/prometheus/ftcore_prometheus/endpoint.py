"""The HTTP endpoint: ``GET /metrics`` in Prometheus' text format or OpenMetrics, as the client asks.

Security is the job's: its certificates, if it has some (of clients, too, if the job demands them), and its token, or
the endpoint's own, as ``Authorization: Bearer TOKEN``. ``GET /-/healthy`` answers without a token.

House rules: requests are served in threads, at most ``REQUESTS_MAX`` at once, and each for a limited time, so a slow or
hostile client costs little. Certificates are read again when their files change.
"""

import contextlib
import hmac
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from typing import Any, Final

import attrs
import structlog
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

REQUESTS_MAX: Final = 8
REQUEST_S: Final = 10.0
TEXT: Final = "text/plain; charset=utf-8"

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class Certificates:
    """Files of the server's side of TLS.

    Args:
        cert: the certificate chain.
        key: its key.
        clients: the authority of the clients' certificates; None: clients need none.
    """

    cert: Path
    key: Path
    clients: Path | None

    def stamp(self) -> tuple[int, ...]:
        """Changes when a file changes; raises ``OSError`` if one cannot be read."""
        files = [self.cert, self.key, *([self.clients] if self.clients is not None else [])]
        return tuple(file.stat().st_mtime_ns for file in files)

    def context(self) -> ssl.SSLContext:
        """The TLS configuration; raises ``OSError`` or ``ssl.SSLError`` if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if self.clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.clients)
        return context


class Endpoint:
    """An HTTP server in threads of its own.

    Args:
        host: address to listen on.
        port: port to listen on; 0: a free one.
        metrics: returns the metrics; called in a thread for each request.
        token: demanded from clients; empty: none.
        certificates: for TLS; None: unencrypted.

    Raises:
        OSError: it cannot listen there, or a certificate cannot be used.
    """

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Callable[[], Collector],
        *,
        token: str = "",
        certificates: Certificates | None = None,
    ) -> None:
        handler = type("_Handler", (_Requests,), {"metrics": staticmethod(metrics), "token": token})
        self._server = (_Server6 if ":" in host else _Server)((host, port), handler, certificates)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    address_family = AF_INET

    def __init__(self, address: tuple[str, int], handler: Any, certificates: Certificates | None) -> None:
        self._certificates = certificates
        self._context = certificates.context() if certificates is not None else None
        self._stamp = certificates.stamp() if certificates is not None else ()
        self._free = threading.BoundedSemaphore(REQUESTS_MAX)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread; if all are busy, close the connection."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Shake hands, and serve the request, within ``REQUEST_S`` in all."""
        served = request
        limit = threading.Timer(REQUEST_S, lambda: _cut(served))
        limit.daemon = True
        limit.start()
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
            self._free.release()

    def _wrapped(self, request: socket) -> socket:
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


def _cut(connection: socket) -> None:
    """End a request that takes too long."""
    with contextlib.suppress(OSError):
        connection.shutdown(SHUT_RDWR)


class _Server6(_Server):
    address_family = AF_INET6


class _Requests(BaseHTTPRequestHandler):
    metrics: Callable[[], Collector]
    token = ""
    timeout = REQUEST_S
    server_version = "ftcore"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        if path == "/-/healthy":
            self._answer(HTTPStatus.OK, TEXT, b"ok\n")
        elif not self._permitted():
            self._answer(HTTPStatus.UNAUTHORIZED, TEXT, b"send the job's token: Authorization: Bearer TOKEN\n")
        elif path != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, TEXT, b"the metrics are at /metrics\n")
        else:
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            try:
                text = encode(self.metrics())
            except Exception as error:
                logger.exception("cannot compute the metrics")
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, TEXT, f"{type(error).__name__}: {error}\n".encode())
            else:
                self._answer(HTTPStatus.OK, kind, text)

    def _permitted(self) -> bool:
        if not self.token:
            return True
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode())

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape is no event."""
