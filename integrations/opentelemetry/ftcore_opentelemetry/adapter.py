"""The observers ``otlp://HOST:PORT`` (HTTP) and ``otlps://HOST:PORT`` (HTTPS) of ``ftrun --observe``.

Without a host (``otlp:``), the SDK's variables say where to send to, as ``OTEL_EXPORTER_OTLP_ENDPOINT``. Its variables
for headers, certificates, compression and the resource count in any case.

House rule: ``ftrun`` imports it at each start, so it imports little.
"""

from typing import Final
from urllib.parse import urlsplit

from ftcore import Observed, ObserverAdapter
from ftcore.errors import UsageError

PORT: Final = 4318
PATH: Final = "/v1/traces"
EXPECTED: Final = (
    "expected otlp://HOST:PORT or otlps://HOST:PORT with the port of OTLP over HTTP, as otlp://collector:4318"
)


def endpoint(url: str) -> str | None:
    """The URL to send to; None: the SDK's variables have it.

    Raises:
        UsageError: the URL is wrong.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
    except ValueError as error:
        raise UsageError(f"{url}: {error}; {EXPECTED}") from error
    if parts.query or parts.fragment or parts.username or (not parts.hostname and (parts.netloc or parts.path)):
        raise UsageError(f"{url}: {EXPECTED}")
    if not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path if parts.path not in ("", "/") else PATH
    return f"{'https' if parts.scheme == 'otlps' else 'http'}://{host}:{port}{path}"


async def _run(url: str, observed: Observed) -> None:
    from ftcore_opentelemetry.observe import send

    await send(endpoint(url), observed)


ADAPTER = ObserverAdapter(run=_run, check=endpoint)
