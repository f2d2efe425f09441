"""The observer ``page://HOST:PORT`` (``ftrun --observe``), and its options.

| option | meaning | default |
|---|---|---|
| ``token_file=PATH`` | file with a token of its own | a token that follows from the job's; see ``access`` |
| ``client_certificate=optional`` | browsers need no certificate although the job demands them | as the job demands |

House rule: ``ftrun`` imports it at each start, so it imports little.
"""

import socket
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import attrs

from ftcore.errors import UsageError
from ftcore.runtime.observers import Observed, ObserverAdapter

PORT: Final = 9401
HOST: Final = "127.0.0.1"

EXPECTED: Final = "expected page://HOST:PORT, as page://0.0.0.0:9401"


@attrs.frozen(kw_only=True)
class PageUrl:
    """The parts of a URL.

    Args:
        host: address to listen on.
        port: port to listen on.
        token_file: file with the page's own token; None: the token that follows from the job's.
        client_optional: clients need no certificate.
    """

    host: str
    port: int
    token_file: Path | None = None
    client_optional: bool = False


def parse(url: str) -> PageUrl:
    """Read a URL.

    Raises:
        UsageError: it is wrong.
    """
    try:
        parts = urlsplit(url)
        port = parts.port if parts.port is not None else PORT
    except ValueError as error:
        raise UsageError(f"{url}: {error}; {EXPECTED}") from error
    if parts.path not in ("", "/") or parts.username or parts.fragment:
        raise UsageError(f"{url}: {EXPECTED}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    token_file, clients = options.pop("token_file", None), options.pop("client_certificate", None)
    if options:
        found = next(iter(options))
        raise UsageError(f"{url}: found the option {found!r}; expected token_file or client_certificate")
    if clients not in (None, "optional"):
        raise UsageError(f"{url}: client_certificate: found {clients!r}; expected optional")
    return PageUrl(
        host=parts.hostname or HOST,
        port=port,
        token_file=Path(token_file).expanduser() if token_file else None,
        client_optional=clients is not None,
    )


def _problem(url: str) -> str:
    where = parse(url)
    if where.token_file is not None and not where.token_file.is_file():
        return f"{where.token_file} is no file on this host; a master here would serve no page"
    try:
        family = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((where.host, where.port), family=family):
            return ""
    except OSError as error:
        why = error.strerror or str(error)
        return f"a master on this host cannot listen there now, and will try again: {why}"


async def _run(url: str, observed: Observed) -> None:
    from ftcore.runtime.page.publish import serve_page

    await serve_page(parse(url), observed)


ADAPTER = ObserverAdapter(run=_run, check=parse, problem=_problem)
