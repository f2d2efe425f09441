"""The observer: follows the job, and publishes its newest view while someone reads the page.

The page is up before the log has been read. If it cannot listen, the reason is logged once and it is tried again, since
the port may be that of a predecessor that is about to end.
"""

import asyncio
import time
from typing import Any, Final

import msgspec
import structlog

from ftcore.errors import UsageError
from ftcore.live.feed import LiveFeed
from ftcore.live.page.access import page_token
from ftcore.live.page.server import PageCertificates, PageServer
from ftcore.live.page.streams import Board
from ftcore.live.page.url import PageUrl
from ftcore.runtime import tasks
from ftcore.runtime.observers import Observed
from ftcore.runtime.wire.security import Security
from ftcore.wording import printable

LISTEN_AGAIN_S: Final = 1.0

TICK_S: Final = 0.25
"""Least pause between two views."""

VIEW_EVERY_S: Final = 1.0
"""Without a change, a view is made that often: its clocks go on."""

FAREWELL_S: Final = 0.5
"""Time for the last view to reach its readers."""

NODES: Final = 60
EVENTS: Final = 60

logger = structlog.get_logger()


async def serve_page(url: PageUrl, observed: Observed) -> None:
    """Serve a job's page until ``observed.events`` ends.

    Raises:
        UsageError: the token's file or a certificate cannot be used.
        FtcoreError: the log can never be read.
    """
    feed, board = LiveFeed(observed), Board()
    tokens, certificates = _tokens(url, observed.security), _certificates(url, observed.security)
    following = asyncio.create_task(feed.run())
    publishing = asyncio.create_task(_publish(feed, board))
    listening = asyncio.create_task(_listen(url, board, tokens, certificates))
    try:
        done, _ = await asyncio.wait({following, publishing, listening}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        _publish_now(feed, board)
        await asyncio.sleep(FAREWELL_S)
    finally:
        await tasks.end([publishing, listening, following])


async def _publish(feed: LiveFeed, board: Board) -> None:
    """Publish views while there are readers."""
    made_at = 0.0
    while True:
        now = time.monotonic()
        if board.has_readers and (feed.changed.is_set() or now - made_at >= VIEW_EVERY_S):
            feed.changed.clear()
            made_at = now
            _publish_now(feed, board)
        await asyncio.sleep(TICK_S)


def _publish_now(feed: LiveFeed, board: Board) -> None:
    view = feed.view(nodes=NODES, events=EVENTS)
    board.publish(view.last_seq, msgspec.json.encode(_cleaned(view.to_json())))


def _cleaned(value: Any) -> Any:
    """The value with every text on one line, without control characters, as on a terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _cleaned(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(each) for each in value]
    return value


async def _listen(url: PageUrl, board: Board, tokens: tuple[str, ...], certificates: PageCertificates | None) -> None:
    """Keep the server up; its failure to listen is a warning."""
    last = ""
    while True:
        try:
            server = PageServer(url.host, url.port, board, tokens=tokens, certificates=certificates)
            break
        except OSError as error:
            if str(error) != last:
                last = str(error)
                where = f"{url.host}:{url.port}"
                logger.warning("no page is served: cannot listen, trying again", address=where, error=last)
            await asyncio.sleep(LISTEN_AGAIN_S)
    if last:
        logger.warning("the page is served now", address=f"{url.host}:{server.port}")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.to_thread(server.close)


def _tokens(url: PageUrl, security: Security) -> tuple[str, ...]:
    """The tokens that permit to read: the page's own, or that which follows from the job's, and the job's itself."""
    if url.token_file is None:
        if not security.token:
            logger.warning("the job has no token: every process that reaches this port reads its page", port=url.port)
            return ()
        return page_token(security.token), security.token
    try:
        token = url.token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"token_file: {url.token_file} cannot be read: {error}") from error
    if not token:
        raise UsageError(f"token_file: {url.token_file} is empty")
    return (token,)


def _certificates(url: PageUrl, security: Security) -> PageCertificates | None:
    tls = security.tls
    if tls is None:
        return None
    if tls.cert is None or tls.key is None:
        raise UsageError("the job uses TLS, and this process has no certificate: set FTCORE_TLS_CERT, FTCORE_TLS_KEY")
    return PageCertificates(
        cert=tls.cert, key=tls.key, clients=tls.ca if tls.mutual else None, optional=url.client_optional
    )
