"""The URL ``page://HOST:PORT`` and its options.

| option | meaning | default |
|---|---|---|
| ``token_file=PATH`` | file with a token of its own | a token that follows from the job's; see ``access`` |
| ``client_certificate=optional`` | browsers need no certificate although the job demands them | as the job demands |
"""

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import attrs

from ftcore.errors import UsageError

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
