"""Inside torchrun: the rendezvous handler. Knows torch and the channel, neither gRPC nor the log.

A thread reads what the sidecar says, and opens stores when asked; torchrun's own thread only looks at what was
said last, and waits for it in ``next_rendezvous`` alone. Signals interrupt every wait.

House rules: the user's mistakes and the job's end leave torchrun by ``SystemExit`` with one message and ftcore's exit
code, so that no traceback hides what happened; torchrun's own classes are raised for what they are meant for.
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
"""How long a node tries to reach the store of its world; a host that is gone leads to a new world sooner."""

LIVES = 3
"""How often in a row the sidecar may die before a world came of it."""

LAST_WORDS_S = 15.0
"""How long a torchrun that gave up or leaves waits for that to be in the log."""


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
    """One life of the sidecar, and what it said last. ``changed`` guards all of it.

    Args:
        config: for it.
        env: its environment; the workers' may lack secrets.
        stores: keeps the stores that it has opened here, by round.
    """

    def __init__(self, config: Mapping[str, Any], env: Mapping[str, str], stores: dict[int, Any]) -> None:
        self.changed = threading.Condition()
        self.world: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None
        self.timeout = ""
        self.restart = False
        self.gone = False
        self.waiting = False
        self._stores = stores
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ftcore.rdzv_etcd.sidecar", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                env=env,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C is torchrun's to obey
            )
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            stdin.write(json.dumps(config).encode())
        self._thread = threading.Thread(target=self._read, name="ftcore-rendezvous", daemon=True)
        self._thread.start()

    def say(self, message: dict[str, Any]) -> None:
        """Tell it; if it is gone, that is told by ``gone``."""
        channel.send(self._channel, message)

    def ended(self, timeout_s: float | None) -> bool:
        """Wait until it is gone, with a signal obeyed at once."""
        until = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
        with self.changed:
            while not self.gone and time.monotonic() < until:
                self.changed.wait(min(1.0, max(0.0, until - time.monotonic())))
        return self.gone

    def close(self) -> None:
        """Have it end, if it has not, and collect it."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        while (message := channel.receive(self._channel)) is not None:
            if "open" in message:
                self.say(self._open(int(message["open"]), str(message["host"])))
                continue
            with self.changed:
                self._take(message)
                self.changed.notify_all()
        with self.changed:
            self.gone = True
            self.changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        if "world" in message:
            self.world, self.restart = message["world"], False
        elif "restart" in message and self.waiting:
            self.world = None
            self.say({"next": []})
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
        except Exception as error:  # torch raises its own types for a name that does not resolve or a refused socket
            return {"store": round_, "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        for old in sorted(self._stores)[:-ROUNDS_KEPT]:
            del self._stores[old]
        return {"store": round_, "port": port}


class FtcoreRendezvous(RendezvousHandler):  # type: ignore[misc]  # torch's base is untyped
    """One torchrun's handler.

    Args:
        config: for the sidecar, as far as it is known before torchrun has an agent.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._env = {name: value for name, value in os.environ.items() if name != orphans.MARK}
        self._sidecar: _Sidecar | None = None
        self._stores: dict[int, Any] = {}
        self._group: Any = None
        self._told_running = True
        self._had_world = False

    def get_backend(self) -> str:
        """Its name."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """True: all ranks are clients of the round's store."""
        return True

    def get_run_id(self) -> str:
        """The job."""
        return str(self._config["job"])

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next world and enter it. See the module for what is raised.

        Raises:
            RendezvousTimeoutError: there are too few nodes for a first world, after ``timeout``.
        """
        ended = agent_view.failures()
        for _ in range(LIVES):
            sidecar = self._ensure_sidecar()
            sidecar.say({"next": ended})
            while (world := self._await_world(sidecar)) is not None:
                entered = self._enter(sidecar, world)
                if entered is not None:
                    return entered
            ended = []
        _exit(f"torchrun's sidecar died {LIVES} times in a row; what it said stands above", 1)

    def _ensure_sidecar(self) -> _Sidecar:
        if self._sidecar is not None and self._sidecar.gone:
            self._sidecar.close()
            self._sidecar = None
        if self._sidecar is None:
            self._group = group = agent_view.worker_group(self) or self._group
            if group is not None:
                spec = group.spec
                self._config |= {"slots": spec.local_world_size, "role": spec.role, "max_restarts": spec.max_restarts}
                self._config |= {"spec": agent_view.asked(spec)}
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
                    if sidecar.gone:
                        return None
                    if sidecar.timeout:
                        raise RendezvousTimeoutError(sidecar.timeout)
                    if time.monotonic() > until:
                        sidecar.say({"expired": 1})
                        until = time.monotonic() + self._config["timeout"]
                    sidecar.changed.wait(min(1.0, max(0.0, until - time.monotonic())))
                world, sidecar.world = sidecar.world, None
                return world
            finally:
                sidecar.waiting = False

    def _enter(self, sidecar: _Sidecar, world: dict[str, Any]) -> RendezvousInfo | None:
        """Connect to the world's store; None if it is not reached."""
        host, port = world["store_host"], world["store_port"]
        try:
            store = dist.TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=REACH_S)
            )
        except (dist.DistError, OSError, RuntimeError, ValueError) as error:
            first = str(error).strip().partition("\n")[0]
            sidecar.say({"unusable": f"the store of round {world['round']} at {host}:{port} is not reached: {first}"})
            return None
        for name, value in world["env"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._told_running = False
        self._had_world = True
        shared = RoundStore(
            dist.PrefixStore("torchrun", store),
            (world["base_rank"], world["size"], world["base_role_rank"], world["role_size"]),
            lambda: self._wanted(sidecar),
            lambda: self._tell_running(sidecar),
        )
        return RendezvousInfo(shared, world["group_rank"], world["nodes"], RendezvousStoreInfo(host, port))

    @staticmethod
    def _wanted(sidecar: _Sidecar) -> bool:
        return sidecar.restart or sidecar.gone or sidecar.end is not None

    def num_nodes_waiting(self) -> int:
        """1 if the workers are to be stopped for a new round: torchrun comes back then. Never waits."""
        sidecar = self._sidecar
        if sidecar is None:
            return 0
        self._tell_running(sidecar)
        return int(self._wanted(sidecar))

    def _tell_running(self, sidecar: _Sidecar) -> None:
        """Tell once a round that its workers have begun; torchrun has started them before it calls."""
        if not self._told_running:
            self._told_running = True
            sidecar.say({"running": agent_view.pids(self._group)})

    def is_closed(self) -> bool:
        """The job has ended, or goes on without this node."""
        return self._sidecar is not None and self._sidecar.end is not None

    def set_closed(self) -> None:
        """Have the job end; it can be started again."""
        if self._sidecar is not None:
            self._sidecar.say({"close": 1})

    def shutdown(self) -> bool:
        """Tell how this torchrun ends. Who has succeeded waits until the job has: another node may need its store."""
        sidecar = self._sidecar
        if sidecar is None:
            return True
        error, failures = agent_view.raised()
        gave_up = bool(failures)
        if not error and agent_view.failed(self._group):
            error, failures, gave_up = "its workers failed", agent_view.failures(), True
        if gave_up:
            sidecar.say({"gave_up": self._why_it_gave_up(failures), "failures": failures})
        elif error:
            sidecar.say({"leaving": error})
        else:
            sidecar.say({"done": 1})
        sidecar.ended(LAST_WORDS_S if error else None)
        sidecar.close()
        return True

    def _why_it_gave_up(self, failures: list[dict[str, Any]]) -> str:
        restarts = self._config.get("max_restarts", 0)
        first = f"local rank {failures[0]['local_rank']} ended with code {failures[0]['exitcode']}" if failures else ""
        budget = f"--max-restarts {restarts} are used up" if restarts else "--max-restarts is 0"
        return f"{first or 'a worker failed'}, and torchrun's {budget}"
