"""One container of a pod as its kubelet sees it: its state, how often it ran, what it ended with."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from .names import stamp
from .status import Json


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container ended. ``reason``: "" stands for Completed or Error, by the exit code."""

    code: int
    reason: str = ""
    message: str = ""


class StartError(Exception):
    """A container cannot be started now: ``reason`` as in its waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Process(Protocol):
    """A running container."""

    async def wait(self) -> Exit:
        """Until it ended."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self, as_if: Exit | None = None) -> None:
        """End it at once; ``as_if``: how that is reported."""


class Runtime(Protocol):
    """Starts containers."""

    async def start(self, pod: Json, container: Json, attempt: int) -> Process:
        """Start a container; raises StartError."""

    def prepare(self, pod: Json) -> str:
        """Prepare a pod's volumes and return its address; raises StartError."""

    def refresh(self, pod: Json) -> None:
        """A config map or secret changed."""

    def clear(self, pod: Json) -> None:
        """A pod is gone."""


class FakeProcess:
    """A container that does nothing until SIGTERM."""

    def __init__(self) -> None:
        self._end: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()

    async def wait(self) -> Exit:
        """Until it ended."""
        return await asyncio.shield(self._end)

    def terminate(self) -> None:
        """End as a shell does at SIGTERM."""
        self.kill(Exit(143))

    def kill(self, as_if: Exit | None = None) -> None:
        """End."""
        if not self._end.done():
            self._end.set_result(as_if or Exit(137))


class FakeRuntime:
    """Containers without processes."""

    def __init__(self) -> None:
        self._count = 0

    async def start(self, pod: Json, container: Json, attempt: int) -> Process:
        """Start a container."""
        del pod, container, attempt
        return FakeProcess()

    def prepare(self, pod: Json) -> str:
        """Return a new address."""
        del pod
        self._count += 1
        return f"10.{244 + self._count // 65025 % 8}.{self._count // 255 % 255}.{self._count % 255 + 1}"

    def refresh(self, pod: Json) -> None:
        """No file has to change."""

    def clear(self, pod: Json) -> None:
        """Nothing was prepared."""


@dataclass(slots=True)
class Container:
    """A container's record. ``state`` and ``last`` are as in ``containerStatuses``."""

    spec: Json
    init: bool = False
    restarts: int = 0
    state: Json = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last: Json = field(default_factory=dict)
    process: Process | None = None
    exit: Exit | None = None
    runs: int = 0
    id: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        found: str = self.spec["name"]
        return found

    @property
    def sidecar(self) -> bool:
        """Whether it is an init container that stays."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    def waits(self, reason: str, message: str = "") -> None:
        """It waits for something."""
        self.state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}

    def started(self, process: Process, number: str) -> None:
        """It runs."""
        self.process, self.exit, self.id = process, None, f"containerd://{number}"
        self.runs += 1
        self.state = {"running": {"startedAt": stamp()}}

    def ended(self, found: Exit) -> None:
        """It ended."""
        begun = self.state.get("running", {}).get("startedAt")
        reason = found.reason or ("Completed" if found.code == 0 else "Error")
        about = {
            "exitCode": found.code,
            "reason": reason,
            "startedAt": begun,
            "finishedAt": stamp(),
            "containerID": self.id,
        }
        if found.message:
            about["message"] = found.message
        self.process, self.exit, self.state = None, found, {"terminated": about}

    def again(self, reason: str = "", message: str = "") -> None:
        """It will be started again."""
        self.last, self.exit = self.state, None
        self.restarts += 1
        if reason:
            self.waits(reason, message)

    def status(self) -> Json:
        """Its entry in ``containerStatuses``."""
        running = "running" in self.state
        done = self.init and not self.sidecar and self.exit is not None and self.exit.code == 0
        found: Json = {
            "name": self.name, "image": self.spec["image"], "imageID": "", "restartCount": self.restarts,
            "ready": done or (running and (not self.init or self.sidecar)), "started": running, "state": self.state,
            "lastState": self.last,
        }  # fmt: skip
        if self.id:
            found |= {"containerID": self.id, "imageID": f"{self.spec['image']}@sha256:{'0' * 64}"}
        return found
