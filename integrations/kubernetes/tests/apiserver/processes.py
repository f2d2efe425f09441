"""Containers as local processes: command, environment, volumes, signals, exit codes and output are real.

Not isolated: file system, network, hostname and memory limits are the machine's. Each pod has a loopback address of
its own, which its processes must bind to for themselves.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

import yaml

from . import volumes
from .container import Exit, Process, StartError
from .objects import Objects
from .status import Json

MARK = "APISERVER_CONTAINER"
"""Variable that every process of a container inherits; what carries it ends with the container."""

INHERITED = ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")
MESSAGE_BYTES_MAX = 2048


def marked(mark: str) -> list[int]:
    """The processes whose environment has a mark."""
    found, text = [], f"{MARK}={mark}".encode()
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with contextlib.suppress(OSError):
                if text in (each / "environ").read_bytes().split(b"\0"):
                    found.append(int(each.name))
    return found


class LocalProcess:
    """One run of a container."""

    def __init__(self, process: asyncio.subprocess.Process, mark: str, log: Path, explain: bool) -> None:
        self._process, self._mark, self._log, self._explain = process, mark, log, explain
        self._as_if: Exit | None = None
        self._end = asyncio.get_running_loop().create_task(self._ended())

    async def _ended(self) -> Exit:
        code = await self._process.wait()
        self._sweep()
        if self._as_if is not None:
            return self._as_if
        code = 128 - code if code < 0 else code
        text = ""
        if code and self._explain and self._log.exists():
            text = self._log.read_bytes()[-MESSAGE_BYTES_MAX:].decode(errors="replace")
        return Exit(code, "", text)

    async def wait(self) -> Exit:
        """Until the main process ended; the others are gone as well then."""
        return await asyncio.shield(self._end)

    def terminate(self) -> None:
        """SIGTERM to the main process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self, as_if: Exit | None = None) -> None:
        """SIGKILL to all its processes."""
        if self._process.returncode is None:
            self._as_if = as_if
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._sweep()

    def _sweep(self) -> None:
        for number in marked(self._mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)


class ProcessRuntime:
    """``root``: a directory for volumes and output. ``images``: commands of images that have an entry point.

    ``environment``: variables for every container. ``config_of``: the kubeconfig of a pod's service account.
    """

    def __init__(
        self,
        objects: Objects,
        root: Path,
        config_of: Callable[[Json], Json],
        images: Mapping[str, Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._objects, self._root, self._config_of = objects, root, config_of
        self._images, self._environment = dict(images or {}), dict(environment or {})
        self._numbers, self._instance = count(1), secrets.token_hex(8)
        self._addresses = secrets.randbelow(25_000) * 250  # servers side by side give their pods other addresses
        self.ca_pem = b""
        self._pods: dict[str, int] = {}
        self._logs: dict[tuple[str, str], list[Path]] = {}

    def mark(self, pod: Json, container: str) -> str:
        """What the processes of a container carry, and no process of another server."""
        return f"{self._instance}/{pod['metadata']['uid']}/{container}"

    def place(self, pod: Json) -> Path:
        """The directory of a pod: volumes, homes, output."""
        return self._root / str(self._pods[pod["metadata"]["uid"]])

    def prepare(self, pod: Json) -> str:
        """Write the pod's volumes and its account's kubeconfig; returns its address. Raises StartError."""
        number = self._pods.setdefault(pod["metadata"]["uid"], next(self._numbers))
        place = self.place(pod)
        for each in ("home", "tmp", "run", "state"):
            (place / each).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._make(pod)
        if pod["spec"].get("automountServiceAccountToken", True) and not (place / "kubeconfig").exists():
            config = self._config_of(pod)
            (place / "kubeconfig").write_text(yaml.safe_dump(config))
            account = place / "account"
            account.mkdir(exist_ok=True)
            (account / "token").write_text(config["users"][0]["user"]["token"])
            (account / "namespace").write_text(pod["metadata"]["namespace"])
            (account / "ca.crt").write_bytes(self.ca_pem)
        number += self._addresses
        return f"127.{number // 62500 % 100 + 100}.{number // 250 % 250}.{number % 250 + 1}"

    def _make(self, pod: Json) -> dict[str, Path]:
        sources = volumes.Sources(self._objects, pod["metadata"]["namespace"])
        return volumes.make(pod, self.place(pod), self._root / "claims", sources)

    def refresh(self, pod: Json) -> None:
        """Write changed config maps and secrets into the volumes of a pod that runs."""
        if pod["metadata"]["uid"] in self._pods:
            with contextlib.suppress(StartError):  # a config map that was deleted stays as it was
                self._make(pod)

    async def start(self, pod: Json, container: Json, attempt: int) -> Process:
        """Start a container; raises StartError."""
        place, name = self.place(pod), container["name"]
        sources = volumes.Sources(self._objects, pod["metadata"]["namespace"])
        account = {volumes.SERVICE_ACCOUNT: place / "account"}
        places = volumes.Places(container, self._make(pod), account)
        variables = {key: places.replace(value) for key, value in volumes.environment(container, pod, sources).items()}
        command = list(container.get("command") or self._images.get(container["image"], ()))
        command += container.get("args") or []
        if not command:
            text = f"image {container['image']} has no entry point here: name a command, or pass images="
            raise StartError("RunContainerError", text)
        command = [places.replace(volumes.expanded(each, variables)) for each in command]
        log = place / f"{name}.{attempt}.log"
        self._logs.setdefault((pod["metadata"]["uid"], name), []).append(log)
        mark = self.mark(pod, name)
        directory = Path(places.replace(container.get("workingDir") or str(place / "home")))
        try:
            with log.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    cwd=directory,
                    env=self._base(pod, place) | variables | {MARK: mark},
                    start_new_session=True,
                )
        except OSError as problem:
            raise StartError("RunContainerError", f"failed to create containerd task: {problem}") from None
        explain = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        return LocalProcess(process, mark, log, explain)

    def _base(self, pod: Json, place: Path) -> dict[str, str]:
        found = {name: os.environ[name] for name in INHERITED if name in os.environ}
        found["PATH"] = f"{Path(sys.executable).parent}:{found.get('PATH', '/usr/bin:/bin')}"
        found |= {"HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"], "HOME": str(place / "home")}
        for name, where in (("TMPDIR", "tmp"), ("XDG_RUNTIME_DIR", "run"), ("XDG_STATE_HOME", "state")):
            found[name] = str(place / where)
        if (place / "kubeconfig").exists():
            server = self._config_of(pod)["clusters"][0]["cluster"]["server"]
            host, _, port = server.partition("://")[2].partition(":")
            found["KUBECONFIG"] = str(place / "kubeconfig")
            found |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
        return found | self._environment

    def log(self, uid: str, container: str, previous: bool) -> Path | None:
        """The output of a container's present run, or of the one before."""
        found = self._logs.get((uid, container)) or []
        at = -2 if previous else -1
        return found[at] if len(found) >= -at else None

    def clear(self, pod: Json) -> None:
        """A pod is gone: its volumes are removed; its output stays until the server stops."""
        if pod["metadata"]["uid"] in self._pods:
            volumes.remove(self.place(pod) / "volumes")
