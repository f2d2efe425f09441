"""Real etcd servers for tests, on loopback ports: started, killed, frozen, started again.

House rules: a server dies with the test process (parent-death signal). Data lives in a directory of the test's. Without
an etcd binary the tests are skipped, unless ``FTCORE_REQUIRE_ETCD=1``: then they fail.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

START_S = 30.0
NO_ETCD = "no etcd or no etcdctl found: install Debian's etcd-server and etcd-client, or set FTCORE_ETCD_BINARY"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def etcd_binary() -> str | None:
    return os.environ.get("FTCORE_ETCD_BINARY") or shutil.which("etcd")


def require_etcd() -> str:
    """The binary's path; skips the test if there is none, or fails it where etcd is required."""
    binary = etcd_binary()
    if binary is None or shutil.which("etcdctl") is None:
        if os.environ.get("FTCORE_REQUIRE_ETCD") == "1":
            pytest.fail(NO_ETCD)
        pytest.skip(NO_ETCD)
    return binary


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Member:
    """One etcd server."""

    def __init__(
        self, directory: Path, name: str, port: int, peer_port: int, cluster: str, flags: list[str], ipv6: bool = False
    ) -> None:
        self.port = port
        self.endpoint = f"127.0.0.1:{port}"
        self._log = directory / f"{name}.log"
        scheme = "https" if "--cert-file" in flags else "http"
        urls = f"{scheme}://{self.endpoint}"
        peer = f"http://127.0.0.1:{peer_port}"
        self._command = [
            *("setpriv", "--pdeathsig", "KILL", require_etcd()),
            *("--name", name, "--data-dir", str(directory / name), "--initial-cluster", cluster),
            *("--listen-client-urls", f"{urls},{scheme}://[::1]:{port}" if ipv6 else urls),
            *("--advertise-client-urls", urls),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            # Elections and shortest leases in half the usual time.
            *("--heartbeat-interval", "50", "--election-timeout", "500", "--logger", "zap"),
            *flags,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def wait_listening(self) -> None:
        """Return once it takes connections."""
        deadline = time.monotonic() + START_S
        while True:
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"etcd did not start:\n{self._log.read_text()[-3000:]}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)

    def healthy(self) -> bool:
        try:
            with _DIRECT.open(f"http://{self.endpoint}/health", timeout=2) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. Harmless if it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Stop all its threads; it may answer until the last one has stopped."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class Cluster:
    """Servers that form one cluster.

    Args:
        directory: where their data goes.
        size: how many.
        flags: further flags of etcd.
        tls: client connections are encrypted (``flags`` name the files); then health is not asked.
        ipv6: they listen at ``[::1]`` as well.
    """

    def __init__(
        self, directory: Path, size: int = 1, flags: tuple[str, ...] = (), tls: bool = False, ipv6: bool = False
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * size)
        cluster = ",".join(f"m{i}=http://127.0.0.1:{ports[size + i]}" for i in range(size))
        self._tls = tls
        self.members = [
            Member(directory, f"m{i}", ports[i], ports[size + i], cluster, [*flags], ipv6) for i in range(size)
        ]

    @property
    def endpoints(self) -> str:
        return ",".join(member.endpoint for member in self.members)

    def url(self, prefix: str = "") -> str:
        return f"etcd://{self.endpoints}/{prefix}"

    def start(self) -> "Cluster":
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_listening()
        deadline = time.monotonic() + START_S
        while not self._tls and not all(member.healthy() for member in self.members):
            assert time.monotonic() < deadline, "the etcd cluster does not become healthy"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        for member in self.members:
            member.kill()

    def ctl(self, *arguments: str, endpoint: str = "") -> str:
        """Run etcdctl (API 3) against all members, or one."""
        done = self._etcdctl(*arguments, endpoint=endpoint)
        assert done.returncode == 0, f"{done.args}: {done.stderr}"
        return done.stdout

    def compact(self) -> None:
        """Compact up to the present revision; a master may have done so just before."""
        status = self.ctl("endpoint", "status", "--write-out", "json")
        revision = status.split('"revision":')[1].split(",")[0].rstrip("}")
        done = self._etcdctl("compact", revision)
        assert done.returncode == 0 or "has been compacted" in done.stderr, f"{done.args}: {done.stderr}"

    def _etcdctl(self, *arguments: str, endpoint: str = "") -> subprocess.CompletedProcess[str]:
        command = ["etcdctl", "--endpoints", endpoint or self.endpoints, *arguments]
        environ = os.environ | {"ETCDCTL_API": "3", "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    def leader(self) -> Member:
        """The member that leads now."""
        for member in self.members:
            fields = self.ctl("endpoint", "status", endpoint=member.endpoint).split(", ")
            if fields[4] == "true":
                return member
        raise AssertionError("no member leads")


class Proxy:
    """A TCP hop before a server, whose connections can be cut, and which can refuse new ones."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.accepted = 0
        self.refuse = False

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        self.accepted += 1
        away_reader, away_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, away_writer}
        for source, sink in ((reader, away_writer), (away_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One server that all tests may share; use a prefix of your own, and leave it running."""
    require_etcd()
    cluster = Cluster(tmp_path_factory.mktemp("etcd"), flags=("--unsafe-no-fsync",)).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[Cluster]:
    """One server of the test's own."""
    require_etcd()
    cluster = Cluster(tmp_path / "etcd", flags=("--unsafe-no-fsync",)).start()
    yield cluster
    cluster.stop()


@pytest.fixture
def three_etcds(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three of the test's own."""
    require_etcd()
    cluster = Cluster(tmp_path / "etcd", size=3, flags=("--unsafe-no-fsync",)).start()
    yield cluster
    cluster.stop()


def run(body: Coroutine[Any, Any, T], timeout_s: float = 90.0) -> T:
    """Run a test's coroutine in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(body, timeout_s))
