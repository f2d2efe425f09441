"""The HTTP side: one handler for all paths, watches as streams, faults of the transport."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from . import request as asked
from .access import Access
from .faults import Fault, Faults
from .handlers import Answer, Handlers, whole
from .request import Target
from .resources import REVIEWS, VERSION
from .selector import matcher
from .status import ApiError, Json, bad_request, not_allowed
from .store import Store, Stored, Watch, encode

JSON = {"Content-Type": "application/json"}
LogSource = Callable[[web.BaseRequest, Stored], Awaitable[web.StreamResponse]]
Control = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
BEFORE_END_S = 2.0
"""The last bookmark of a watch with a timeout comes that long before its end, in seconds."""


class Frontend:
    """Serves HTTP. ``bookmark_s``: time between the bookmarks of a watch, in seconds.

    ``logs`` answers ``pods/NAME/log``, ``control`` requests below ``/control/``.
    """

    def __init__(self, handlers: Handlers, access: Access, faults: Faults, bookmark_s: float = 60.0) -> None:
        self.handlers, self.access, self.faults = handlers, access, faults
        self.catalog, self.store = handlers.objects.catalog, handlers.store
        self.bookmark_s = bookmark_s
        self.calls: Counter[tuple[str, str]] = Counter()
        self.logs: LogSource | None = None
        self.control: Control | None = None
        self._streams: dict[Watch, tuple[Target, web.BaseRequest]] = {}
        self._closing = asyncio.Event()
        self.problems: list[Exception] = []
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None
        self._tls: ssl.SSLContext | None = None
        self.host, self.port = "", 0

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Begin to listen; port 0: any free one."""
        self._server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(self._server, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        self.host, self._tls = host, tls
        await self._listen(port)

    async def _listen(self, port: int) -> None:
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, self.host, port, ssl_context=self._tls, reuse_address=True, backlog=1024)
        await self._site.start()
        self.port = self._runner.addresses[-1][1]

    async def close(self) -> None:
        """End all connections and stop listening."""
        self._closing.set()
        for watch in list(self._streams):
            watch.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = self._site = None

    async def refuse(self) -> None:
        """Refuse connections and cut those that are open, until ``accept()``."""
        if self._site is not None:
            await self._site.stop()
            self._site = None
        assert self._server is not None
        for each in list(self._server.connections):
            _reset(each.transport)
        for watch in list(self._streams):
            watch.close()

    async def accept(self) -> None:
        """Listen again, on the same port."""
        if self._site is None:
            await self._listen(self.port)

    def cut_watches(self, resource: str = "", abort: bool = True) -> int:
        """End the watches of a resource (all: ""), with a reset or, if not ``abort``, in order; returns how many."""
        count = 0
        for watch, (wanted, request) in list(self._streams.items()):
            if resource in ("", wanted.resource.plural):
                count += 1
                if abort:
                    _reset(request.transport)
                watch.close()
        return count

    @property
    def watches(self) -> Counter[str]:
        """Open watches by resource."""
        return Counter(wanted.resource.plural for wanted, _ in self._streams.values())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as problem:
            return web.Response(status=problem.code, body=encode(problem.status()), headers=JSON | problem.headers)
        except _Dropped:
            _reset(request.transport)
            return web.Response(status=499)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as problem:  # a defect of this server: stop() raises it
            self.problems.append(problem)
            raise

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, query = request.path, request.query
        if path.startswith("/control/") and self.control is not None:
            return await self.control(request)
        user = self.access.user(request.headers.get("Authorization", ""))
        if (plain := self._plain(path)) is not None:
            return plain
        wanted = asked.target(self.catalog, request.method, path, query)
        raw = await _body(request)
        if wanted is None:
            if (review := self._review(path, raw, user)) is not None:
                return web.Response(status=201, body=encode(review), headers=JSON)
            return web.Response(status=404, text="404 page not found\n")
        name = wanted.resource.plural + (f"/{wanted.sub}" if wanted.sub else "")
        self.calls[wanted.verb, name] += 1
        self.access.check(user, wanted, query.get("fieldSelector", ""))
        cached = query.get("resourceVersion") == "0"
        fault = self.faults.meet(wanted, cached)
        if fault is not None and not fault.after:
            await self._suffer(fault)
        if wanted.verb == "watch":
            return await self._watch(request, wanted, query)
        if wanted.sub == "log" and self.logs is not None and not wanted.resource.custom:
            return await self.logs(request, self.handlers.objects.get(wanted.resource, wanted.namespace, wanted.name))
        if wanted.sub == "token" and wanted.resource.key == ("", "serviceaccounts") and wanted.verb == "create":
            account = self.handlers.objects.get(wanted.resource, wanted.namespace, wanted.name)
            return web.Response(status=201, body=encode(self.access.issued(account.object)), headers=JSON)
        answer = self._carry_out(wanted, query, request, raw, fault)
        if fault is not None and fault.after:
            await self._suffer(fault)
        return web.Response(status=answer.code, body=answer.body, headers=JSON | answer.headers)

    async def _suffer(self, fault: Fault) -> None:
        if fault.delay_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(fault.delay_s):
                    await self._closing.wait()
        if fault.drop:
            raise _Dropped
        if fault.code:
            raise fault.error()

    def _carry_out(
        self, wanted: Target, query: Mapping[str, str], request: web.BaseRequest, raw: bytes, fault: Fault | None
    ) -> Answer:
        if fault is not None and fault.stale_revision:
            return self.handlers.list(wanted, query, fault.stale_revision)
        headers = request.headers
        return self.handlers.answer(wanted, query, headers.get("Content-Type", ""), raw, headers.get("User-Agent", ""))

    def _plain(self, path: str) -> web.Response | None:
        parts = path.strip("/").split("/")
        if parts[0] in ("healthz", "livez", "readyz"):
            return web.Response(text="ok")
        if parts == ["version"]:
            return web.Response(body=encode(VERSION), headers=JSON)
        if parts[0] in ("api", "apis") and len(parts) <= (2 if parts[0] == "api" else 3):
            found = self.catalog.discovery(parts)
            if found is not None:
                return web.Response(body=encode(found), headers=JSON)
        return None

    def _review(self, path: str, raw: bytes, user: str) -> Json | None:
        match path.strip("/").split("/"):
            case ["apis", group, "v1", plural] if plural in REVIEWS.get(group, {}):
                return self.access.review(plural, asked.parsed("", raw), user)
        return None

    async def _watch(self, request: web.BaseRequest, wanted: Target, query: Mapping[str, str]) -> web.StreamResponse:
        if wanted.name:
            raise not_allowed(wanted.resource, "watch")
        match = matcher(wanted.resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        since = asked.revision(query)
        initial = asked.flag(query, "sendInitialEvents")
        if query.get("sendInitialEvents") and query.get("resourceVersionMatch") != "NotOlderThan":
            raise bad_request("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
        response = web.StreamResponse(headers=JSON)
        response.enable_chunked_encoding()
        try:
            watch = self.store.watch(wanted.resource, None if initial else since, wanted.namespace, match)
        except ApiError as problem:
            await response.prepare(request)
            await response.write(b'{"type":"ERROR","object":' + encode(problem.status()) + b"}\n")
            await response.write_eof()
            return response
        self._streams[watch] = (wanted, request)
        seconds = query.get("timeoutSeconds")
        stream = Stream(
            wanted, watch, self.store, self.bookmark_s if asked.flag(query, "allowWatchBookmarks") else None
        )
        try:
            await response.prepare(request)
            await stream.run(response, float(asked.number("timeoutSeconds", seconds)) if seconds else None, initial)
            await response.write_eof()
        except ConnectionResetError:
            pass
        finally:
            self._streams.pop(watch, None)
            self.store.unwatch(wanted.resource, watch)
        return response


class Stream:
    """One watch on its way to a client. ``bookmark_s``: time between bookmarks in seconds; None: none are sent."""

    def __init__(self, wanted: Target, watch: Watch, store: Store, bookmark_s: float | None) -> None:
        self.wanted, self.watch, self.store, self.bookmark_s = wanted, watch, store, bookmark_s

    async def run(self, response: web.StreamResponse, timeout_s: float | None, initial: bool) -> None:
        """Send events until the watch is closed or its time is over."""
        now = asyncio.get_running_loop().time
        end = None if timeout_s is None else now() + timeout_s
        await self._send(response)
        if initial and self.bookmark_s is not None:
            await response.write(self._bookmark(initial=True))
        due = self._due(now(), end)
        while not self.watch.closed:
            moment = now()
            if end is not None and moment >= end:
                return
            if due is not None and moment >= due:
                await response.write(self._bookmark())
                due = self._due(moment, end)
            limits = [each - moment for each in (due, end) if each is not None]
            await self.watch.wait(min(limits) if limits else None)
            await self._send(response)

    def _due(self, now: float, end: float | None) -> float | None:
        if self.bookmark_s is None:
            return None
        due = now + self.bookmark_s
        if end is not None and now < end - BEFORE_END_S:
            due = min(due, end - BEFORE_END_S)
        return due

    async def _send(self, response: web.StreamResponse) -> None:
        if events := self.watch.take():
            await response.write(b"".join(self._line(kind, stored) for kind, stored in events))

    def _line(self, kind: str, stored: Stored) -> bytes:
        return f'{{"type":"{kind}","object":'.encode() + whole(self.wanted, stored) + b"}\n"

    def _bookmark(self, initial: bool = False) -> bytes:
        meta: Json = {"resourceVersion": str(max(self.store.revision, self.watch.since)), "creationTimestamp": None}
        if initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return b'{"type":"BOOKMARK","object":' + self.wanted.head + b'"metadata":' + encode(meta) + b"}}\n"


def _reset(transport: asyncio.BaseTransport | None) -> None:
    """Cut a connection with a TCP reset."""
    if transport is None:
        return
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()  # type: ignore[attr-defined]


class _Dropped(Exception):
    pass


async def _body(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > asked.BODY_BYTES_MAX:
        raise asked.too_large()
    parts, size = [], 0
    async for part in request.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > asked.BODY_BYTES_MAX:
            raise asked.too_large()
    return b"".join(parts)
