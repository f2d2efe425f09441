"""A service that holds the masters of several jobs in one process.

    FTCORE_TOKEN=... python examples/embed/service.py --store sqlite:///shared/log --port 8085
    curl -X POST localhost:8085/jobs/llm        # lead the job `llm`
    FTCORE_TOKEN=... ftrun --leadership never --store sqlite:///shared/log --job llm train.py
    curl localhost:8085/health
    curl -X DELETE localhost:8085/jobs/llm      # lead it no longer; another service may

| request | answer |
|---|---|
| ``POST /jobs/NAME`` | 201; 200 if this service already serves the job; 400 for a name that no job can have |
| ``DELETE /jobs/NAME`` | 200 once its master has resigned; 404 if this service does not serve the job |
| ``GET /health`` | 200 with each job's state; 503 while one has a ``problem``, such as a log that cannot be used |

Run two of them on one store, the second with ``--adopt``: it stands by for every job that has not ended, and leads it
as soon as the first has died. Nodes find the leader through the log. All processes need the same FTCORE_TOKEN.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from typing import Any

import ftcore
from ftcore.errors import FtcoreError, UsageError
from ftcore.logs import check_job_name

ENDED = ("succeeded", "failed", "stopped")
RETRY_S = (0.5, 30.0)
ADOPT_S = 1.0


class ServedJob:
    """One job of the service: a candidate for its master role, again and again until the job has ended.

    Args:
        store: URL of the log's store.
        name: the job.
        folder: directory for the master's socket.
        security: credentials of the job.
    """

    def __init__(self, store: str, name: str, folder: str, security: ftcore.Security) -> None:
        self._store, self._name, self._security = store, name, security
        self._socket = f"unix:{folder}/{name}.sock"
        self._master: ftcore.Master | None = None
        self._problem = ""
        self.task = asyncio.create_task(self._serve())

    def to_json(self) -> dict[str, Any]:
        """What ``/health`` shows."""
        phase = self._master.state.phase if self._master is not None else None
        leading = self._master is not None and self._master.leading
        return {
            "phase": phase,
            "leading": leading,
            "done": self.task.done(),
            "problem": self._defect() or self._problem,
        }

    def _defect(self) -> str:
        """The exception that ended the task, which no error of ftcore does; empty: none."""
        error = self.task.exception() if self.task.done() and not self.task.cancelled() else None
        return "" if error is None else f"{type(error).__name__}: {error}"

    async def _serve(self) -> None:
        pause_s = RETRY_S[0]
        while True:
            try:
                log = await ftcore.open_log(self._store, self._name, create=True)
                try:
                    self._problem = ""
                    await self._lead(log)
                    pause_s = RETRY_S[0]
                finally:
                    await log.close()
            except FtcoreError as error:
                self._problem = str(error)
            if self._master is not None and self._master.state.phase in ENDED:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S[1])

    async def _lead(self, log: ftcore.EventLog) -> None:
        leader = await log.leader()
        others = leader is not None and leader.alive
        self._master = ftcore.Master(log, listen=self._socket, security=self._security, standby=others)
        await self._master.run()

    async def stop(self) -> None:
        """Resign; the job goes on with another master."""
        self.task.cancel()
        await asyncio.wait({self.task})


class Service:
    """All jobs of this process, and their HTTP interface."""

    def __init__(self, store: str, folder: str, security: ftcore.Security) -> None:
        self._store, self._folder, self._security = store, folder, security
        self.jobs: dict[str, ServedJob] = {}
        self._not_mine: set[str] = set()

    def start(self, name: str) -> bool:
        """Serve a job; returns whether it is new here."""
        served = self.jobs.get(name)
        if served is not None and not served.task.done():
            return False
        self._not_mine.discard(name)
        self.jobs[name] = ServedJob(self._store, name, self._folder, self._security)
        return True

    async def stop(self, name: str) -> bool:
        """Serve a job no longer; returns whether it was served."""
        served = self.jobs.pop(name, None)
        if served is None:
            return False
        self._not_mine.add(name)
        await served.stop()
        return True

    async def adopt(self) -> None:
        """Serve every job of the store that has not ended; never returns."""
        ended: dict[str, int] = {}
        while True:
            with contextlib.suppress(FtcoreError):  # a store that does not answer is asked again
                store = ftcore.open_store(self._store)
                try:
                    for name in await store.jobs():
                        if name not in self.jobs and name not in self._not_mine:
                            with contextlib.suppress(FtcoreError):  # of this job; the others are served
                                await self._adopt(store, name, ended)
                finally:
                    await store.close()
            await asyncio.sleep(ADOPT_S)

    async def _adopt(self, store: ftcore.LogStore, name: Any, ended: dict[str, int]) -> None:
        log = await store.open(name)
        try:
            last, over = await log.last_seq(), False
            if ended.get(name) == last:
                return
            async for event in log.read(after=(await log.floor()).seq):
                over = event.type == "job.finished" or (over and event.type != "job.submitted")
        finally:
            await log.close()
        if over:
            ended[name] = last
        else:
            self.start(name)

    async def answer(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        """Answer a request with a status and a JSON object."""
        parts = path.strip("/").split("/")
        if (method, parts) == ("GET", ["health"]):
            jobs = {name: job.to_json() for name, job in self.jobs.items()}
            return (503 if any(job["problem"] for job in jobs.values()) else 200), {"jobs": jobs}
        if len(parts) != 2 or parts[0] != "jobs" or method not in ("POST", "DELETE"):
            return 404, {"error": f"{method} {path}: expected GET /health, POST /jobs/NAME or DELETE /jobs/NAME"}
        if method == "DELETE":
            return (200, {}) if await self.stop(parts[1]) else (404, {"error": f"{parts[1]}: no such job here"})
        try:
            name = check_job_name(parts[1])
        except UsageError as error:
            return 400, {"error": str(error)}
        return (201 if self.start(name) else 200), {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one HTTP request, then close the connection."""
        with contextlib.suppress(ConnectionError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(10):
                head = (await reader.readuntil(b"\r\n\r\n")).decode(errors="replace")
            method, path, _ = head.split("\r\n")[0].split(" ")
            status, body = await self.answer(method, path)
            text = json.dumps(body).encode()
            writer.write(f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\n".encode())
            writer.write(f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode() + text)
            await writer.drain()
        writer.close()


async def serve(args: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT; then resign from all jobs."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    security = ftcore.Security(token=os.environ["FTCORE_TOKEN"])
    with tempfile.TemporaryDirectory() as folder:  # private to this user
        service = Service(args.store, folder, security)
        server = await asyncio.start_server(service.handle, args.host, args.port)
        print(f"serving on port {server.sockets[0].getsockname()[1]}", flush=True)
        adopting = asyncio.create_task(service.adopt()) if args.adopt else None
        await over.wait()
        server.close()
        if adopting is not None:
            adopting.cancel()
        await asyncio.gather(*(service.stop(name) for name in list(service.jobs)))


def main() -> int:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="URL of the store of the event logs")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on")
    parser.add_argument("--port", type=int, default=0, help="port to serve on; default: a free one, which is printed")
    parser.add_argument("--adopt", action="store_true", help="also serve every job of the store that has not ended")
    args = parser.parse_args()
    if not os.environ.get("FTCORE_TOKEN"):
        parser.error("set FTCORE_TOKEN, the secret of the jobs, of at least 16 characters")
    try:
        asyncio.run(serve(args))
    except FtcoreError as error:
        print(f"service: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
