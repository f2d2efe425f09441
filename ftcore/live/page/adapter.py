"""The observer ``page://HOST:PORT`` (``ftrun --observe``); ``url`` has its options.

House rule: ``ftrun`` imports it at each start, so it imports little.
"""

import socket

from ftcore.live.page.url import parse
from ftcore.runtime.observers import Observed, ObserverAdapter


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
    from ftcore.live.page.publish import serve_page

    await serve_page(parse(url), observed)


ADAPTER = ObserverAdapter(run=_run, check=parse, problem=_problem)
