"""A small synchronous client for tests: one connection, JSON in and out."""

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

MERGE = "application/merge-patch+json"


class Reply(NamedTuple):
    """An HTTP answer."""

    code: int
    body: Any
    headers: dict[str, str]


class Client:
    """Talks to one server; ``ca``: trust this certificate authority (PEM)."""

    def __init__(self, url: str, token: str = "", ca: str = "", timeout_s: float = 60.0) -> None:
        self.url, self._ca = url, ca
        parts = urlsplit(url)
        self._where, self._token, self._timeout_s = parts.netloc, token, timeout_s
        self._tls = ssl.create_default_context(cadata=ca) if parts.scheme == "https" else None
        self._connection = self._connect()

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._where, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._where, timeout=self._timeout_s)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any,
        kind: str,
        query: dict[str, Any],
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": kind}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        connection.request(method, f"{path}?{urlencode(query)}" if query else path, raw, headers)
        return connection.getresponse()

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: Any) -> Reply:
        """One request; raises OSError or ``http.client.HTTPException`` if there is no answer."""
        try:
            response = self._send(self._connection, method, path, body, kind, query)
            raw = response.read()
        except BaseException:
            self._connection.close()
            self._connection = self._connect()
            raise
        is_json = response.headers.get("Content-Type", "").startswith("application/json")
        return Reply(response.status, json.loads(raw) if is_json else raw.decode(), dict(response.headers))

    def get(self, path: str, **query: Any) -> Reply:
        """GET."""
        return self.call("GET", path, **query)

    def post(self, path: str, body: Any, **query: Any) -> Reply:
        """POST."""
        return self.call("POST", path, body, **query)

    def put(self, path: str, body: Any, **query: Any) -> Reply:
        """PUT."""
        return self.call("PUT", path, body, **query)

    def patch(self, path: str, body: Any, kind: str = MERGE, **query: Any) -> Reply:
        """PATCH, a merge patch by default."""
        return self.call("PATCH", path, body, kind, **query)

    def delete(self, path: str, body: Any = None, **query: Any) -> Reply:
        """DELETE."""
        return self.call("DELETE", path, body, **query)

    def watch(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """The events of a watch, on a connection of its own, until the server ends it."""
        connection = self._connect()
        try:
            response = self._send(connection, "GET", path, None, "application/json", {"watch": "true", **query})
            if response.status != 200:
                raise ValueError(f"watch: {response.status} {response.read()!r}")
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def another(self) -> "Client":
        """A client like this one with a connection of its own."""
        return Client(self.url, self._token, self._ca, self._timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
