"""Detection of a dead process by its connections."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ftcore.logs.departed import departed

SERVE = """
import signal, socket, sys
served = socket.create_server(("127.0.0.1", 0)) if sys.argv[1] == "tcp" else socket.socket(socket.AF_UNIX)
if sys.argv[1] != "tcp":
    served.bind(sys.argv[1]); served.listen()
print(served.getsockname()[1] if sys.argv[1] == "tcp" else "", flush=True)
kept = []
while True:
    kept.append(served.accept()[0])
    print("accepted", flush=True)
    if len(sys.argv) > 2:
        kept.clear()
"""


class Server:
    """Accepts connections in a child process; with ``closes`` it closes each at once."""

    def __init__(self, place: str = "tcp", *, closes: bool = False) -> None:
        argv = [sys.executable, "-c", SERVE, place, *(["closes"] if closes else [])]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        port = self.line()
        self.address = f"127.0.0.1:{port}" if place == "tcp" else f"unix:{place}"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("place", ["tcp", "unix"])
def test_a_killed_process_is_detected(tmp_path: Path, place: str) -> None:
    """A killed process is detected: its connection breaks, and the next ones are refused."""

    async def scenario() -> None:
        server = Server(place if place == "tcp" else str(tmp_path / "socket"))
        told = asyncio.create_task(departed(server.address))
        await asyncio.to_thread(server.line)
        assert not told.done()
        server.end()
        await told

    asyncio.run(scenario())


def test_a_live_process_is_not_reported() -> None:
    """A live process is not reported, neither when frozen nor when it closes idle connections."""

    async def scenario() -> None:
        frozen, closing = Server(), Server(closes=True)
        told = [asyncio.create_task(departed(server.address)) for server in (frozen, closing)]
        await asyncio.to_thread(frozen.line)
        os.kill(frozen.process.pid, signal.SIGSTOP)
        for _ in range(4):
            assert await asyncio.to_thread(closing.line) == "accepted"
        assert not any(task.done() for task in told)
        for task in told:
            task.cancel()
        await asyncio.gather(*told, return_exceptions=True)
        frozen.end()
        closing.end()

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "unix:/nowhere", "no.such.host.invalid:80", "nonsense"])
def test_an_address_never_reached_is_not_reported(address: str) -> None:
    """An address that was never reached is not reported, however often it is refused."""

    async def scenario() -> None:
        told = asyncio.create_task(departed(address))
        done, _ = await asyncio.wait([told], timeout=0.5)
        told.cancel()
        assert not done

    asyncio.run(scenario())
