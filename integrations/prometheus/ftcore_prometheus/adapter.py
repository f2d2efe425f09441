"""The observer ``prometheus://HOST:PORT`` (``ftrun --observe``), and its options.

| option | meaning | default |
|---|---|---|
| ``groups=N`` | groups of ranks, at most; each has four series | 128 |
| ``token_file=PATH`` | file with a token of its own, so that Prometheus need not have the job's | the job's token |

House rule: ``ftrun`` imports it at each start, so it imports little.
"""

import socket
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import attrs

from ftcore import Observed, ObserverAdapter
from ftcore.errors import UsageError

PORT: Final = 9400
HOST: Final = "127.0.0.1"
GROUPS: Final = 128
"""Default of the option ``groups``."""

EXPECTED: Final = "expected prometheus://HOST:PORT, as prometheus://0.0.0.0:9400"


@attrs.frozen(kw_only=True)
class EndpointUrl:
    """The parts of a URL.

    Args:
        host: address to listen on.
        port: port to listen on.
        groups: groups of ranks, at most.
        token_file: file with the endpoint's own token; None: the job's.
    """

    host: str
    port: int
    groups: int = GROUPS
    token_file: Path | None = None


def parse(url: str) -> EndpointUrl:
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
    groups, token_file = options.pop("groups", str(GROUPS)), options.pop("token_file", None)
    if options:
        raise UsageError(f"{url}: found the option {next(iter(options))!r}; expected groups or token_file")
    if not groups.isdecimal() or int(groups) < 1:
        raise UsageError(f"{url}: groups: found {groups!r}; expected a number, at least 1")
    return EndpointUrl(
        host=parts.hostname or HOST,
        port=port,
        groups=int(groups),
        token_file=Path(token_file).expanduser() if token_file else None,
    )


def _problem(url: str) -> str:
    where = parse(url)
    if where.token_file is not None and not where.token_file.is_file():
        return f"{where.token_file} is no file on this host; a master here would serve no metrics"
    try:
        family = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((where.host, where.port), family=family):
            return ""
    except OSError as error:
        why = error.strerror or str(error)
        return f"a master on this host cannot listen there now, and will try again: {why}"


async def _run(url: str, observed: Observed) -> None:
    from ftcore_prometheus.observe import serve

    await serve(parse(url), observed)


ADAPTER = ObserverAdapter(run=_run, check=parse, problem=_problem)
