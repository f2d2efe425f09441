"""The rendezvous handler inside torchrun. Imports torch and the channel, neither gRPC nor the log.

A thread reads messages of the sidecar and opens stores on request. torchrun's own thread reads the latest state, and
waits for the sidecar only in ``next_rendezvous``. Signals interrupt every wait.

House rules: user errors and the job's end leave torchrun by ``SystemExit`` with one message and ftcore's exit code, so
that no traceback hides the reason. torchrun's own exceptions are raised for their documented purposes.
"""

import contextlib
import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ftcore.errors import FtcoreError
from ftcore.rdzv_etcd import agent_view, channel, options, orphans
from ftcore.rdzv_etcd.round_store import RoundStore
from ftcore.runtime.warm.store import ROUNDS_KEPT, open_server

BACKEND = "ftcore"
REACH_S = 5.0
"""How long a node tries to connect to the store of its world; a lost host leads to a new world earlier."""

LIVES = 3
"""How often in a row the sidecar may die before a world is formed."""

END_REPORT_S = 15.0
"""How long a torchrun that gave up or leaves waits until the log has recorded it."""


def make(params: RendezvousParameters) -> "FtcoreRendezvous":
    """The handler for these parameters; ends the process, with a message, if they cannot be used."""
    try:
        found = options.check(params.config)
        store = options.store_url(params.endpoint, os.environ.get("FTCORE_STORE", ""))
    except FtcoreError as error:
        _exit(str(error), error.exit_code)
    return FtcoreRendezvous(
        {
            "job": params.run_id,
            "store": store,
            "nodes_min": params.min_nodes,
            "nodes_max": params.max_nodes,
            "local_addr": params.local_addr or "",
            "command": sys.argv,
            "pid": os.getpid(),
            "versions": {"torch": str(torch.__version__), "python": platform.python_version()},
            **found,
        }
    )


def _exit(message: str, code: int) -> NoReturn:
    print(f"ftcore: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code)


class _Sidecar:
    """One sidecar process and its latest messages; ``changed`` guards all attributes.

    Args:
        config: its configuration.
        env: its environment; it has secrets that the workers' environment lacks.
        stores: filled with the stores that the sidecar has opened in this process, by round.
    """

    def __init__(self, config: Mapping[str, Any], env: Mapping[str, str], stores: dict[int, Any]) -> None:
        self.changed = threading.Condition()
        self.world: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.timeout = ""
        self.restart = False
        self.exited = False
        self.waiting = False
        self._stores = stores
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ftcore.rdzv_etcd.sidecar", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                env=env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # only torchrun handles Ctrl-C
            )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps(config).encode())
        self._thread = threading.Thread(target=self._read, name="ftcore-rendezvous", daemon=True)
        self._thread.start()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message; an error is ignored, because ``exited`` reports the end of the sidecar."""
        channel.send(self._channel, message)

    def ended(self, timeout_s: float | None) -> bool:
        """Wait until the sidecar has ended; signals interrupt the wait."""
        until = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
        with self.changed:
            while not self.exited and time.monotonic() < until:
                self.changed.wait(min(1.0, max(0.0, until - time.monotonic())))
        return self.exited

    def close(self) -> None:
        """End the sidecar and wait for its process."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_REPORT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        while (message := channel.receive(self._channel)) is not None:
            if "open" in message:
                self.send(self._open(int(message["open"]), str(message["host"])))
                continue
            with self.changed:
                self._handle(message)
                self.changed.notify_all()
        with self.changed:
            self.exited = True
            self.changed.notify_all()

    def _handle(self, message: dict[str, Any]) -> None:
        if "world" in message:
            self.world, self.restart = message["world"], False
        elif "restart" in message and self.waiting:
            self.world = None
            self.send({"next": []})
        elif "restart" in message:
            self.restart = True
        elif "timeout" in message:
            self.timeout = str(message["timeout"])
        elif "end" in message:
            self.end = message["end"]

    def _open(self, round_: int, host: str) -> dict[str, Any]:
        try:
            self._stores.pop(round_, None)
            self._stores[round_], port = open_server(host)
        except Exception as error:  # torch has its own exceptions for an unresolved name or a refused socket
            return {"store": round_, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        for old in sorted(self._stores)[:-ROUNDS_KEPT]:
            del self._stores[old]
        return {"store": round_, "port": port}


class FtcoreRendezvous(RendezvousHandler):  # type: ignore[misc]  # torch's base is untyped
    """The rendezvous handler of a torchrun.

    Args:
        config: configuration of the sidecar, without the fields that come from torchrun's agent.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._env = {name: value for name, value in os.environ.items() if name != orphans.MARK}
        self._sidecar: _Sidecar | None = None
        self._stores: dict[int, Any] = {}
        self._group: Any = None
        self._running_sent = True
        self._had_world = False

    def get_backend(self) -> str:
        """The backend's name."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: all ranks are clients of the round's store."""
        return True

    def get_run_id(self) -> str:
        """The job's name."""
        return str(self._config["job"])

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next world and enter it.

        Raises:
            RendezvousTimeoutError: too few nodes joined for a first world within ``timeout``.
            SystemExit: the job has ended or refused this node.
        """
        ended = agent_view.failures()
        for _ in range(LIVES):
            sidecar = self._ensure_sidecar()
            sidecar.send({"next": ended})
            while (world := self._await_world(sidecar)) is not None:
                entered = self._enter(sidecar, world)
                if entered is not None:
                    return entered
            ended = []
        _exit(f"torchrun's sidecar died {LIVES} times in a row; see its messages above", 1)

    def _ensure_sidecar(self) -> _Sidecar:
        if self._sidecar is not None and self._sidecar.exited:
            self._sidecar.close()
            self._sidecar = None
        if self._sidecar is None:
            self._group = group = agent_view.worker_group(self) or self._group
            if group is not None:
                spec = group.spec
                self._config |= {"slots": spec.local_world_size, "role": spec.role, "max_restarts": spec.max_restarts}
                self._config |= {"spec": agent_view.job_spec(spec)}
            self._sidecar = _Sidecar(self._config, self._env, self._stores)
        return self._sidecar

    def _await_world(self, sidecar: _Sidecar) -> dict[str, Any] | None:
        """The next world; None if the sidecar has died."""
        until = float("inf") if self._had_world else time.monotonic() + self._config.get("timeout", float("inf"))
        with sidecar.changed:
            sidecar.waiting = True
            try:
                while sidecar.world is None:
                    if sidecar.end is not None:
                        _exit(str(sidecar.end["reason"]), int(sidecar.end["exit_code"]))
                    if sidecar.exited:
                        return None
                    if sidecar.timeout:
                        raise RendezvousTimeoutError(sidecar.timeout)
                    if time.monotonic() > until:
                        sidecar.send({"expired": 1})
                        until = time.monotonic() + self._config["timeout"]
                    sidecar.changed.wait(min(1.0, max(0.0, until - time.monotonic())))
                world, sidecar.world = sidecar.world, None
                return world
            finally:
                sidecar.waiting = False

    def _enter(self, sidecar: _Sidecar, world: dict[str, Any]) -> RendezvousInfo | None:
        """Connect to the world's store; None if it cannot be reached."""
        host, port = world["store_host"], world["store_port"]
        try:
            store = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=REACH_S)
            )
        except (dist.DistError, OSError, RuntimeError, ValueError) as error:
            first = str(error).strip().partition("\n")[0]
            reason = f"the store of round {world['round']} at {host}:{port} cannot be reached: {first}"
            sidecar.send({"unusable": reason})
            return None
        for name, value in world["env"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._running_sent = False
        self._had_world = True
        shared = RoundStore(
            dist.PrefixStore("torchrun", store),
            (world["base_rank"], world["size"], world["base_role_rank"], world["role_size"]),
            lambda: self._round_over(sidecar),
            lambda: self._send_running(sidecar),
        )
        return RendezvousInfo(shared, world["group_rank"], world["nodes"], RendezvousStoreInfo(host, port))

    @staticmethod
    def _round_over(sidecar: _Sidecar) -> bool:
        return sidecar.restart or sidecar.exited or sidecar.end is not None

    def num_nodes_waiting(self) -> int:
        """1 if torchrun must stop its workers and return to the rendezvous, else 0; never waits."""
        sidecar = self._sidecar
        if sidecar is None:
            return 0
        self._send_running(sidecar)
        return int(self._round_over(sidecar))

    def _send_running(self, sidecar: _Sidecar) -> None:
        """Report the running workers, once a round; torchrun has started them before it calls."""
        if not self._running_sent:
            self._running_sent = True
            sidecar.send({"running": agent_view.pids(self._group)})

    def is_closed(self) -> bool:
        """Whether the job has ended, or goes on without this node."""
        return self._sidecar is not None and self._sidecar.end is not None

    def set_closed(self) -> None:
        """Request the end of the job; it can be started again."""
        if self._sidecar is not None:
            self._sidecar.send({"close": 1})

    def shutdown(self) -> bool:
        """Report how this torchrun ends. After success, wait for the end of the job: other nodes may need its store."""
        sidecar = self._sidecar
        if sidecar is None:
            return True
        error, failures = agent_view.raised()
        gave_up = bool(failures)
        if not error and agent_view.failed(self._group):
            error, failures, gave_up = "its workers failed", agent_view.failures(), True
        if gave_up:
            sidecar.send({"gave_up": self._give_up_reason(failures), "failures": failures})
        elif error:
            sidecar.send({"leaving": error})
        else:
            sidecar.send({"done": 1})
        sidecar.ended(END_REPORT_S if error else None)
        sidecar.close()
        return True

    def _give_up_reason(self, failures: list[dict[str, Any]]) -> str:
        restarts = self._config.get("max_restarts", 0)
        first = f"local rank {failures[0]['local_rank']} ended with code {failures[0]['exitcode']}" if failures else ""
        budget = f"--max-restarts {restarts} is used up" if restarts else "--max-restarts is 0"
        return f"{first or 'a worker failed'}, and torchrun's {budget}"
