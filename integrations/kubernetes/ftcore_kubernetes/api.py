"""Requests to the API server.

Plain HTTP (``httpx``) and plain objects, no generated client: a typed client drops the fields that its version does not
know, and a user's pod template must arrive as it was written. The package needs five verbs and a watch.
"""

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, TypeAlias

import httpx

from ftcore.errors import Unreachable
from ftcore_kubernetes.config import ApiConfig

KubeObject: TypeAlias = dict[str, Any]
"""An object of the API, as in its JSON."""

ANSWER_S: Final = 20.0
"""Longest wait for an answer."""

BUSY_S: Final = 30.0
"""Longest time for which a server that is too busy (429) is asked again."""

MERGE: Final = "application/merge-patch+json"

OPENED: Final = "OPENED"
"""Type of the first event of a watch, which the server has accepted."""

KEEPALIVE: Final = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
"""A connection to a server that is gone ends within 25 s: a watch alone may be silent for minutes."""


class ApiError(Exception):
    """The API server answered with an error.

    Args:
        code: of HTTP.
        reason: of ``Status``, as ``AlreadyExists``.
        message: for people.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(f"{message} ({code} {reason})" if message else f"{code} {reason}")
        self.code, self.reason, self.message = code, reason, message


class Api:
    """A client of one API server.

    Args:
        config: where it is.

    Attributes:
        config: the same.
        calls: number of requests by verb, for measurements; a watch is one.
    """

    def __init__(self, config: ApiConfig) -> None:
        self.config = config
        self.calls: dict[str, int] = {}
        transport = httpx.AsyncHTTPTransport(verify=config.verify, socket_options=KEEPALIVE)
        self._http = httpx.AsyncClient(
            base_url=config.url, transport=transport, timeout=httpx.Timeout(ANSWER_S), trust_env=False
        )

    async def get(self, path: str, **params: str) -> KubeObject:
        """Get an object, or a list.

        Raises:
            ApiError: the server refuses.
            Unreachable: it does not answer, or is broken or too busy.
        """
        return await self._ask("GET", path, params)

    async def create(self, path: str, obj: Mapping[str, Any]) -> KubeObject:
        """Create an object in a collection. Raises as ``get``."""
        return await self._ask("POST", path, {}, obj)

    async def patch(self, path: str, patch: Mapping[str, Any]) -> KubeObject:
        """Apply a merge patch (RFC 7386). Raises as ``get``."""
        return await self._ask("PATCH", path, {}, patch, MERGE)

    async def delete(
        self, path: str, *, grace_s: int | None = None, uid: str = "", propagation: str = ""
    ) -> KubeObject | None:
        """Begin to delete an object; None: there is none.

        Args:
            path: its path.
            grace_s: grace period of a pod in seconds; None: its own.
            uid: delete only the object with this one.
            propagation: ``Foreground`` or ``Background``; empty: the server's default.

        Raises:
            ApiError, Unreachable: as ``get``.
        """
        options: KubeObject = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        if propagation:
            options["propagationPolicy"] = propagation
        try:
            return await self._ask("DELETE", path, {}, options)
        except ApiError as error:
            if error.code == 404 or (error.code == 409 and uid):
                return None
            raise

    async def watch(self, path: str, timeout_s: int, **params: str) -> AsyncIterator[KubeObject]:
        """Watch a collection; yields ``OPENED``, then events, until the server ends the stream.

        Args:
            path: of the collection.
            timeout_s: seconds after which the server ends it.
            params: selectors and ``resourceVersion``.

        Raises:
            ApiError: as ``get``, also from within the stream (``ERROR``).
            Unreachable: as ``get``; the stream was cut.
        """
        query = params | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_s)}
        self._count("watch")
        timeout = httpx.Timeout(ANSWER_S, read=timeout_s + ANSWER_S)
        try:
            async with self._http.stream("GET", path, params=query, headers=self._headers(), timeout=timeout) as answer:
                if answer.is_error:
                    await answer.aread()
                    await self._pause(answer, 0.0)
                    raise _problem(answer)
                yield {"type": OPENED}
                async for line in answer.aiter_lines():
                    if line:
                        yield _event(line)
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(_text(self.config.url, error)) from error

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def _ask(
        self, verb: str, path: str, params: Mapping[str, str], body: Any = None, kind: str = "application/json"
    ) -> KubeObject:
        loop = asyncio.get_running_loop()
        until = loop.time() + BUSY_S
        content = json.dumps(body) if body is not None else None
        while True:
            self._count(verb)
            try:
                headers = self._headers() | ({"Content-Type": kind} if content is not None else {})
                answer = await self._http.request(verb, path, params=params, content=content, headers=headers)
            except (httpx.HTTPError, OSError) as error:
                raise Unreachable(_text(self.config.url, error)) from error
            if answer.is_success:
                return _object_of(answer)
            if answer.status_code != 429 or loop.time() > until:
                raise _problem(answer)
            await self._pause(answer, 1.0)

    def _headers(self) -> dict[str, str]:
        token = self.config.bearer()
        return {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})

    async def _pause(self, answer: httpx.Response, least_s: float) -> None:
        """Wait as long as the server asks for; some callers longer than others, so that they do not return at once."""
        wait_s = least_s
        with contextlib.suppress(ValueError):
            wait_s = float(answer.headers.get("Retry-After", least_s))
        if wait_s > 0:
            await asyncio.sleep(min(wait_s, BUSY_S) * random.uniform(1.0, 1.25))

    def _count(self, verb: str) -> None:
        self.calls[verb] = self.calls.get(verb, 0) + 1


def _object_of(answer: httpx.Response) -> KubeObject:
    """The object in an answer.

    Raises:
        Unreachable: it is no object: a proxy or a load balancer answers in the API server's place.
    """
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unreachable(f"the API server answers {answer.status_code} with no JSON object: {answer.text[:200]!r}")
    return found


def _problem(answer: httpx.Response) -> ApiError | Unreachable:
    """What an answer that is no success means: 429 and 5xx are no refusal."""
    try:
        status = answer.json()
    except ValueError:
        status = {}
    if not isinstance(status, dict):
        status = {}
    reason = str(status.get("reason") or answer.reason_phrase)
    message = str(status.get("message") or answer.text[:300])
    if answer.status_code == 429 or answer.status_code >= 500:
        return Unreachable(f"the API server answers {answer.status_code} {reason}: {message}"[:500])
    return ApiError(answer.status_code, reason, message)


def _event(line: str) -> KubeObject:
    try:
        event = json.loads(line)
    except ValueError as error:
        raise Unreachable("the API server cut a watch in the middle of an event") from error
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise Unreachable(f"the API server sent a watch event without an object: {line[:200]!r}")
    if event.get("type") == "ERROR":
        status = event["object"]
        raise ApiError(
            int(status.get("code") or 500), str(status.get("reason") or ""), str(status.get("message") or "")
        )
    return event


def _text(url: str, error: Exception) -> str:
    return f"the API server {url} does not answer: {type(error).__name__}{f': {error}' if str(error) else ''}"
