"""The agent's side of the node's keeper: starts it at the first connection of a worker, asks it, adopts a living one.

The agent listens on the keeper's socket. At the first connection it starts the keeper, which takes over the socket. If
the keeper ends, the agent listens again, and the next connection starts another one, with empty memory. A keeper whose
agent has died still listens: the next agent of the node takes it over, with what it holds.

The agent also has the TCP socket at which its keeper takes copies of other nodes' shards: so its port is known before
there is a keeper, and the next keeper has the same one.

House rules: the keeper is in a session of its own and survives the agent. Nothing here waits without a limit: a keeper
that does not answer fails the request.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import structlog

from ftcore.errors import Refused
from ftcore.private import SocketPath
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.keeper.config import CONTROL_FD, COPIES, COPIES_FD, LISTENER_FD, BuddyPlan, KeeperConfig
from ftcore.runtime.keeper.listener import BACKLOG, KEEP_S, listen
from ftcore.runtime.keeper.peer import Peer
from ftcore.shm import messages

ANSWER_S: Final = 5.0
"""Timeout in seconds of a request that needs no storage and no worker."""

STAGE_S: Final = 30.0
"""Timeout in seconds of a request to stage; a worker has 20."""

STORAGE_S: Final = 3600.0
"""Timeout in seconds of a request that waits for storage; the master's deadline is usually shorter."""

ADOPT_S: Final = 3.0
"""Timeout in seconds of taking over a keeper."""

END_S: Final = 30.0
"""How long a leaving agent waits for its keeper to write what it holds, in seconds; it goes on without the agent."""

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 60.0
"""Longest pause in seconds before another keeper is started, if two did not start or live for ``HEALTHY_S``; it begins
with ``RETRY_S`` and doubles."""

HEALTHY_S: Final = 10.0
ERROR_BYTES: Final = 8192
"""Bytes of a keeper's error output that are kept."""

logger = structlog.get_logger()


class KeeperEvents:
    """What the keeper reports by itself; the owner replaces the callbacks."""

    def __init__(self) -> None:
        self.persisted: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.failed: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.loaded: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.skipped: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.positioned: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.queue: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.replicas: Callable[[Mapping[str, Any]], None] = lambda message: None
        self.committed: Callable[[Mapping[str, Any]], None] = lambda message: None


class KeeperLink:
    """The keeper of this node; see the module. Made in the agent's event loop.

    Args:
        reaper: waits for the keeper.
        path: the keeper's socket.
        config: the keeper's configuration, without the log's identity.
        address: host name or address of this node, at which its keeper takes copies; empty: it takes none.
    """

    def __init__(self, reaper: Reaper, path: str, config: KeeperConfig, address: str = "") -> None:
        self._reaper = reaper
        self._place = SocketPath(path)
        self._config = config
        self._address = address
        self._copies: socket.socket | None = None
        self._plan = BuddyPlan()
        self._loop = asyncio.get_running_loop()
        self._listener: socket.socket | None = None
        self._peer: Peer | None = None
        self._pid = 0
        self._pidfd = -1
        self._ended = asyncio.Event()
        self._ended.set()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._reading: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._warned = ""
        self._closed = False
        self._errors = -1
        self._printed = bytearray()
        self._started_at = 0.0
        self._early = 0
        self.events = KeeperEvents()

    @property
    def alive(self) -> bool:
        """Whether a keeper runs and serves this agent."""
        return self._peer is not None

    @property
    def log(self) -> str:
        """The identity of the log of the keeper's memory; empty: not known yet."""
        return self._config.log

    @property
    def pid(self) -> int:
        """Process id of the keeper; 0: none runs."""
        return self._pid if self.alive else 0

    @property
    def copies_port(self) -> int:
        """The port at which the keeper takes copies; 0: it takes none."""
        return int(self._copies.getsockname()[1]) if self._copies is not None else 0

    # -- life

    async def open(self) -> None:
        """Take over the keeper of a dead predecessor, or listen for the first worker that needs one.

        Raises:
            OSError: the socket cannot be made.
        """
        if not await self._adopt():
            self._listener = listen(self._place)
            self._loop.add_reader(self._listener, self._start)
            self._copies = _listening(self._address) if self._address else None
        self._keeping = self._loop.create_task(self._keep_socket())

    def configure(self, log: str) -> None:
        """Name the log of the job. A keeper with the memory of another log ends, and the next worker starts one."""
        if self._config.log == log:
            return
        before, self._config = self._config.log, msgspec.structs.replace(self._config, log=log)
        if self._peer is None:
            return
        if before:
            self._tell({"bye": "replaced"})
            self._lost()
        else:
            self._tell(msgspec.to_builtins(self._config))

    def copy(self, plan: BuddyPlan) -> None:
        """See ``checkpoints.KeeperClientPort``."""
        self._plan = plan
        self._tell({"copies": msgspec.to_builtins(plan)})

    async def bye(self, outcome: str) -> None:
        """End the keeper: it writes what it has to, with this node's agent or without it.

        Args:
            outcome: how the job or the node's part in it ended; see ``Outcome``.
        """
        if self._peer is None:
            return
        self._closed = True
        self._tell({"bye": outcome})
        processes.kill(self._pid, signal.SIGCONT)  # a stopped one would stay, with its memory
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                await self._ended.wait()
        if not self._ended.is_set():
            logger.warning("the keeper is still writing checkpoints; it ends by itself", pid=self._pid)

    def close(self) -> None:
        """Release the socket. A keeper that runs is not ended, and stays watched: the supervisor must not kill it."""
        self._closed = True
        if self._keeping is not None:
            self._keeping.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._peer is not None:
            self._peer.close()
            self._peer = None
        elif self._listener is not None:
            self._place.remove()
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if self._copies is not None:
            self._copies.close()
            self._copies = None
        self._close_errors()
        self._close_pidfd()

    async def _adopt(self) -> bool:
        channel = messages.new_socket()
        try:
            channel.settimeout(ADOPT_S)
            await self._loop.run_in_executor(None, channel.connect, str(self._place.path))
            messages.send(channel, {"hello": "agent", "job": self._config.job, "node": self._config.node})
            reply, fds = await self._loop.run_in_executor(None, messages.receive, channel)
        except (OSError, ValueError):  # nobody listens there
            channel.close()
            return False
        if reply is None or "keeper" not in reply or not fds:
            messages.close_all(fds)
            channel.close()
            return False
        self._listener = socket.socket(fileno=fds[0])
        self._copies = socket.socket(fileno=fds[1]) if len(fds) > 1 else None
        self._place.bound()
        self._config = msgspec.structs.replace(self._config, log=str(reply["log"]))
        self._pid = int(reply["keeper"])
        self._watch_adopted()
        self._serve(Peer(channel))
        logger.info("took over the keeper of this node", pid=self._pid)
        return True

    def _watch_adopted(self) -> None:
        """Notice the end of a keeper that is no child of this process."""
        try:
            self._pidfd = os.pidfd_open(self._pid)
        except OSError:  # it is in another process namespace: its end is not waited for
            return
        self._ended.clear()
        self._loop.add_reader(self._pidfd, self._adopted_ended)

    def _adopted_ended(self) -> None:
        self._close_pidfd()
        self._ended.set()

    def _close_pidfd(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    async def _keep_socket(self) -> None:
        """Make the socket again if it was removed; a keeper that runs does it by itself."""
        while True:
            await asyncio.sleep(KEEP_S)
            if self._peer is None and self._place.missing:
                self._listen_again()

    def _listen_again(self) -> None:
        before = self._listener
        assert before is not None
        try:
            self._listener = listen(self._place)
        except OSError as error:
            if str(error) != self._warned:
                self._warned = str(error)
                logger.warning("the keeper's socket was removed and cannot be made again", reason=error.strerror)
            return
        if self._loop.remove_reader(before):
            self._loop.add_reader(self._listener, self._start)
        before.close()
        logger.warning("the keeper's socket was removed and has been made again", path=str(self._place.path))

    def _start(self) -> None:
        """Start a keeper, which accepts the connection that waits."""
        assert self._listener is not None
        self._loop.remove_reader(self._listener)
        self._started_at = self._loop.time()
        try:
            ours, errors, pid = self._spawn(self._listener)
        except OSError as error:
            logger.error("cannot start the keeper; state is not saved in memory", reason=error.strerror)
            self._start_later()
            return
        self._close_errors()
        self._printed.clear()
        self._errors = errors
        self._loop.add_reader(errors, self._read_errors)
        self._close_pidfd()
        self._pid = pid
        self._ended.clear()
        self._reaper.watch(pid, lambda code, _mono: self._died(pid, code))
        self._serve(Peer(ours))

    def _spawn(self, listener: socket.socket) -> tuple[socket.socket, int, int]:
        """Start the process; returns the channel to it, its error output and its process id.

        Raises:
            OSError: it cannot be started.
        """
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as on_error:
            ours, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.enter_context(channel)
            on_error.enter_context(ours)
            errors, printed = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            theirs.callback(os.close, printed)
            on_error.callback(os.close, errors)
            argv = [sys.executable, "-P", "-m", "ftcore.runtime.keeper"]
            # It outlives the agent: a reader of the agent's output must not wait for the keeper.
            files = {2: printed, LISTENER_FD: listener.fileno(), CONTROL_FD: channel.fileno()}
            if self._copies is not None:
                argv.append(COPIES)
                files[COPIES_FD] = self._copies.fileno()
            pid = processes.spawn(argv, os.environ, files, null=(0, 1))
            on_error.pop_all()
        return ours, errors, pid

    def _start_later(self) -> None:
        """Let the next worker that needs a keeper start one, after a pause if the last ones did not live long."""
        healthy = self._loop.time() > self._started_at + HEALTHY_S
        self._early = 0 if healthy else self._early + 1
        if self._early < 2:
            self._start_again()
        else:
            self._loop.call_later(min(RETRY_S * 2.0 ** (self._early - 2), RETRY_S_MAX), self._start_again)

    def _read_errors(self) -> None:
        try:
            data = os.read(self._errors, 65536)
        except OSError:
            return
        if not data:
            self._close_errors()
        self._printed += data
        del self._printed[:-ERROR_BYTES]

    def _close_errors(self) -> None:
        if self._errors >= 0:
            self._loop.remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1

    def _start_again(self) -> None:
        if self._listener is not None and not self._closed and self._peer is None:
            if not self._place.is_ours():
                self._listen_again()  # the keeper had to make a new one, which has ended with it
            self._loop.add_reader(self._listener, self._start)

    def _serve(self, peer: Peer) -> None:
        self._peer = peer
        self._tell(msgspec.to_builtins(self._config))
        self._tell({"copies": msgspec.to_builtins(self._plan)})
        self._reading = self._loop.create_task(self._read(peer))

    def _died(self, pid: int, code: int) -> None:
        if pid != self._pid:
            return  # one that was replaced
        self._ended.set()
        if not self._closed:
            self._read_errors()
            output = self._printed.decode(errors="replace").strip()
            logger.warning(
                "the keeper has ended; its memory is lost", exit_code=code, **({"output": output} if output else {})
            )
        self._lost()

    def _lost(self) -> None:
        """Forget the keeper, and listen for the next worker that needs one."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        peer.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Refused("the keeper of this node has ended"))
        self._answers.clear()
        self._start_later()

    # -- messages

    async def held(self) -> list[dict[str, Any]]:
        """See ``checkpoints.KeeperClientPort``."""
        return list((await self._ask({"held": 1}, ANSWER_S))["held"])

    async def queues(self) -> None:
        """See ``checkpoints.KeeperClientPort``."""
        await self._ask({"queues": 1}, ANSWER_S)

    def lease(self, message: Mapping[str, Any]) -> None:
        """See ``checkpoints.KeeperClientPort``."""
        self._tell({"lease": message})

    async def stage(self, round_: int) -> list[dict[str, Any]]:
        """See ``checkpoints.KeeperClientPort``."""
        return list((await self._ask({"stage": round_}, STAGE_S))["staged"])

    async def persist(self, round_: int, step: int, ranks: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """See ``checkpoints.KeeperClientPort``."""
        answer = await self._ask({"persist": {"round": round_, "step": step, "ranks": list(ranks)}}, STORAGE_S)
        return list(answer["persisted"]), list(answer["failed"])

    async def written(self, round_: int) -> list[dict[str, Any]]:
        """See ``checkpoints.KeeperClientPort``."""
        return list((await self._ask({"written": round_}, STORAGE_S))["failed"])

    async def commit(self, round_: int, step: int, files: Sequence[str]) -> dict[str, Any]:
        """See ``checkpoints.KeeperClientPort``."""
        order = {"round": round_, "step": step, "files": list(files)}
        return dict((await self._ask({"commit": order}, STORAGE_S))["committed"])

    async def _ask(self, request: dict[str, Any], within_s: float) -> dict[str, Any]:
        if self._peer is None:
            raise Refused("this node has no keeper: no worker has registered its state")
        self._number += 1
        self._answers[self._number] = answer = self._loop.create_future()
        number = self._number
        self._tell({"id": number, **request})
        try:
            reply: dict[str, Any] = await asyncio.wait_for(answer, within_s)
        except TimeoutError:
            raise Refused(f"the keeper of this node did not answer within {within_s:g} s") from None
        finally:
            self._answers.pop(number, None)
        if "error" in reply:
            raise Refused(str(reply["error"]))
        return reply

    def _tell(self, message: dict[str, Any]) -> None:
        if self._peer is not None:
            self._peer.send(message)

    async def _read(self, peer: Peer) -> None:
        while True:
            try:
                message, fds = await peer.receive()
            except ValueError:
                message, fds = None, []
            messages.close_all(fds)
            if message is None:
                break
            self._take(message)
        if self._peer is peer:
            self._lost()

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            answer = self._answers.get(int(message["id"]))
            if answer is not None and not answer.done():
                answer.set_result(message)
        elif "persisted" in message:
            self.events.persisted(message["persisted"])
        elif "failed" in message:
            self.events.failed(message["failed"])
        elif "loaded" in message:
            self.events.loaded(message["loaded"])
        elif "skipped" in message:
            self.events.skipped(message["skipped"])
        elif "positioned" in message:
            self.events.positioned(message["positioned"])
        elif "queue" in message:
            self.events.queue(message["queue"])
        elif "replicas" in message:
            self.events.replicas(message["replicas"])
        elif "committed" in message:
            self.events.committed(message["committed"])
        elif "note" in message:
            logger.warning("the keeper reports a problem", reason=message["note"])


def _listening(address: str) -> socket.socket | None:
    """Listen at an address of this host, or at all of them if it is none; None: that is impossible."""
    for host in (address, ""):
        try:
            family = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            return socket.create_server((host, 0), family=family, backlog=BACKLOG)
        except OSError as error:
            reason = str(error)
    logger.warning("this node takes no copies of other nodes' shards: it cannot listen", reason=reason)
    return None
