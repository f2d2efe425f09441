"""The observer: folds the log, asks the master, serves the endpoint.

The endpoint is up before the log has been read: a scrape tells how far behind the figures are. If it cannot listen, the
reason is logged once and it is tried again, since the port may be that of a predecessor that is about to end.
"""

import asyncio
import threading
import time
from typing import Final

import structlog
from prometheus_client import Metric
from prometheus_client.registry import Collector

from ftcore import Observed, ObservedMaster, Security
from ftcore.errors import FtcoreError, UsageError
from ftcore_prometheus.adapter import EndpointUrl
from ftcore_prometheus.endpoint import Certificates, Endpoint
from ftcore_prometheus.families import JobMetrics
from ftcore_prometheus.figures import JobFigures
from ftcore_prometheus.live import LogView, StepPaces

LOOK_EVERY_S: Final = 5.0
"""Pause between two looks at the master's memory: Prometheus scrapes no more often, as a rule."""

LISTEN_AGAIN_S: Final = 2.0

logger = structlog.get_logger()


class JobObserver:
    """The figures of one job, shared between the reader of the log and the threads of requests.

    Args:
        observed: the job.
        groups: groups of ranks, at most.
    """

    def __init__(self, observed: Observed, groups: int) -> None:
        self._observed, self._groups = observed, groups
        self._figures, self._times = JobFigures(), StepPaces()
        self._lock = threading.Lock()
        self._master: ObservedMaster | None = None
        self._end, self._readable = 0, True

    async def read(self) -> None:
        """Fold the log until the observer shall end."""
        async for event in self._observed.events():
            with self._lock:
                self._figures.feed(event)
            if event.seq % 256 == 0:
                await asyncio.sleep(0)

    async def look(self) -> None:
        """Ask the master and the log, again and again."""
        while True:
            found = await self._observed.look()
            self._master = self._times.filled(found, time.monotonic()) if found is not None else None
            try:
                self._end, self._readable = await self._observed.last_seq(), True
            except (FtcoreError, OSError):
                self._readable = False
            await asyncio.sleep(LOOK_EVERY_S)

    def metrics(self) -> Collector:
        """The current metrics; called by the threads of requests."""
        with self._lock:
            return Snapshot(list(self._current().collect()))

    def _current(self) -> JobMetrics:
        read = self._figures.state.seq
        log = LogView(read=read, end=max(read, self._end), readable=self._readable and not self._observed.lost)
        return JobMetrics(self._observed.job, self._figures, master=self._master, log=log, groups=self._groups)


class Snapshot(Collector):
    """Metric families that were collected before.

    Args:
        families: the families.
    """

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Return them."""
        return self._families


async def serve(url: EndpointUrl, observed: Observed) -> None:
    """Serve a job's metrics until ``observed.events`` ends.

    Raises:
        UsageError: the token's file or a certificate cannot be used.
    """
    observer = JobObserver(observed, url.groups)
    looking = asyncio.create_task(observer.look())
    listening = asyncio.create_task(_listen(url, observed, observer))
    reading = asyncio.create_task(observer.read())
    try:
        done, _ = await asyncio.wait({reading, looking, listening}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (looking, listening, reading):
            task.cancel()
        await asyncio.gather(looking, listening, reading, return_exceptions=True)


async def _listen(url: EndpointUrl, observed: Observed, observer: JobObserver) -> None:
    """Keep the endpoint up; its failure to listen is a warning."""
    security = observed.security
    token, certificates = _token(url, security), _certificates(security)
    if not token:
        logger.warning("the job has no token: every process that reaches this port reads its metrics", port=url.port)
    last = ""
    while True:
        try:
            endpoint = Endpoint(url.host, url.port, observer.metrics, token=token, certificates=certificates)
            break
        except OSError as error:
            if str(error) != last:
                last = str(error)
                where = f"{url.host}:{url.port}"
                logger.warning("no metrics are served: cannot listen, trying again", address=where, error=last)
            await asyncio.sleep(LISTEN_AGAIN_S)
    if last:
        logger.warning("metrics are served now", address=f"{url.host}:{endpoint.port}")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.to_thread(endpoint.close)


def _token(url: EndpointUrl, security: Security) -> str:
    if url.token_file is None:
        return security.token
    try:
        token = url.token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"token_file: {url.token_file} cannot be read: {error}") from error
    if not token:
        raise UsageError(f"token_file: {url.token_file} is empty")
    return token


def _certificates(security: Security) -> Certificates | None:
    tls = security.tls
    if tls is None:
        return None
    if tls.cert is None or tls.key is None:
        raise UsageError("the job uses TLS, and this process has no certificate: set FTCORE_TLS_CERT, FTCORE_TLS_KEY")
    return Certificates(cert=tls.cert, key=tls.key, clients=tls.ca if tls.mutual else None)
