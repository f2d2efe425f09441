"""The job's own etcd: one member on the host of the batch script, with its data on the shared file system.

The data outlives the host: after a requeue, the member starts with it on another host, and the job goes on in the same
log. etcd locks its data, so a member that still runs on a host which Slurm calls dead keeps a second one out, if the
file system has locks across hosts (NFS 4, Lustre with ``flock``, GPFS): then the second one waits. With password,
because any user of the cluster reaches its port; without TLS.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
from pathlib import Path
from typing import Final

from ftcore.errors import FtcoreError, Refused, Unreachable
from ftcore_slurm.control import ask
from ftcore_slurm.ending import say

START_S: Final = 900.0
"""How long another member may hold the data: a lock of a dead host ends with its lease."""

SLOW_S: Final = 20.0
"""After which the user is told."""

STOP_S: Final = 10.0
RESTART_S: Final = 1.0


class EtcdMember:
    """A member of its own cluster; it is started again if it ends.

    Args:
        directory: for its data, password and messages; on a shared file system, private.
        address: of this host, as other nodes reach it; a name or an address.
        binary: etcd's program; ``etcdctl`` is beside it or in ``PATH``.
    """

    def __init__(self, directory: Path, address: str, binary: str) -> None:
        self._directory, self._binary = directory, binary
        self._address = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0]
        self._ports = _free_port(), _free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        control = Path(binary).with_name("etcdctl")
        self._etcdctl = str(control) if control.exists() else shutil.which("etcdctl") or "etcdctl"
        self.url = f"etcd://root@{_in_url(str(self._address))}:{self._ports[0]}"

    @property
    def password_file(self) -> Path:
        """Where the password of its user ``root`` is."""
        return self._directory / "etcd.password"

    async def start(self) -> None:
        """Start it, with what it had stored, and keep it running.

        Raises:
            Refused: it cannot be started, or does not answer; the text says where its messages are.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_secret(self.password_file)
        if not self._has_password:  # the first time, before it has a password, for this host alone
            await self._begin("127.0.0.1")
            await self._answers("127.0.0.1")
            await self._secure()
            (self._directory / "etcd.secured").touch()
            await self._end()
        await self._begin(str(self._address))
        await self._answers(str(self._address))
        self._watching = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """End it, with all that it stored on disk."""
        if self._watching is not None:
            self._watching.cancel()
        await self._end()

    async def _begin(self, address: str) -> None:
        client, peer = self._ports
        where, own = f"http://{_in_url(address)}:{client}", f"http://127.0.0.1:{peer}"
        argv = [
            *(self._binary, "--name", "ftcore", "--data-dir", str(self._directory / "etcd"), "--logger", "zap"),
            *("--listen-client-urls", where, "--advertise-client-urls", where, "--listen-peer-urls", own),
            *("--initial-advertise-peer-urls", own, "--initial-cluster", f"ftcore={own}"),
        ]
        with (self._directory / "etcd.log").open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            except OSError as error:
                raise Refused(f"{self._binary}: {error.strerror}") from error

    async def _answers(self, address: str) -> None:
        """Wait until it answers: as long as another member may hold its data."""
        loop = asyncio.get_running_loop()
        begun, told = loop.time(), False
        while True:
            assert self._process is not None
            if self._process.returncode is not None or loop.time() - begun > START_S:
                await self._end()
                raise Refused(f"etcd on {address} does not answer; see {self._directory / 'etcd.log'}")
            if await self._serves(address):
                return
            if not told and loop.time() - begun > SLOW_S:
                told = True
                say(f"etcd does not answer yet: another host may still hold {self._directory / 'etcd'}")
            await asyncio.sleep(0.2)

    async def _serves(self, address: str) -> bool:
        """Whether it reads its data: it has been elected, even if by itself alone."""
        user = {"ETCDCTL_USER": f"root:{self.password_file.read_text().strip()}"} if self._has_password else {}
        where = f"--endpoints=http://{_in_url(address)}:{self._ports[0]}"
        argv = (self._etcdctl, where, "--command-timeout=5s", "get", "ftcore-answers")
        try:
            await ask(*argv, env=dict(os.environ) | user)
        except (Refused, Unreachable) as error:
            return "user name is empty" in str(error)  # it was cut off before it had noted that it has a password
        return True

    @property
    def _has_password(self) -> bool:
        return (self._directory / "etcd.secured").exists()

    async def _secure(self) -> None:
        """Set the password of ``root``, and require it."""
        base = [self._etcdctl, f"--endpoints=http://127.0.0.1:{self._ports[0]}", "--command-timeout=10s"]
        for attempt in range(10):  # it leads only after an election
            try:
                with contextlib.suppress(Refused):  # it was cut off between these steps before
                    await ask(
                        *base, "user", "add", "root", "--interactive=false", stdin=self.password_file.read_bytes()
                    )
                with contextlib.suppress(Refused):
                    await ask(*base, "user", "grant-role", "root", "root")
                await ask(*base, "auth", "enable")
                return
            except (Refused, Unreachable) as error:
                if "user name is empty" in str(error):
                    return  # it had been enabled
                if attempt == 9:
                    raise
            await asyncio.sleep(0.5)

    async def _keep(self) -> None:
        """Start it again, at the same address, whenever it has ended."""
        while True:
            assert self._process is not None
            code = await self._process.wait()
            say(f"etcd has ended with code {code}; it is started again. See {self._directory / 'etcd.log'}")
            await asyncio.sleep(RESTART_S)
            with contextlib.suppress(FtcoreError):
                await self._begin(str(self._address))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def write_secret(path: Path) -> None:
    """Write random text to a new file that only its owner reads; one that is there stays."""
    if path.exists():
        return
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(part, path)
    part.unlink()


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port
