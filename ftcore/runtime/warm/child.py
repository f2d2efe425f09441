"""Turns a fork of the warm process into a worker: its own session, ends with the agent, waits for its launch.

A parked worker has sent its process id and waits on its own channel for the launch; it exits if the agent ends. This
module and ``run`` make it equivalent to a fresh ``python -u script``. Where that is impossible (``_why_exec``) it
becomes a fresh interpreter by exec (``fresh.py``).
"""

import ctypes
import importlib
import os
import signal
import socket
import sys
import time
from types import ModuleType

from ftcore.runtime.warm import protocol
from ftcore.shm.page import PAGE_FD_ENV
from ftcore.shm.rounds import ROUNDS_FD_ENV

_PR_SET_PDEATHSIG = 1
_FRESH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fresh.py")
_ROOT = os.path.abspath(os.path.join(os.path.dirname(_FRESH), "..", "..", ".."))
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(agent: int) -> None:
    """Have the kernel kill this process when the agent ends; exit at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(1)


def settle(agent: int, intermediate: int) -> None:
    """Create a session and wait until the agent is the parent, when the intermediate process has exited."""
    os.setsid()
    while os.getppid() == intermediate:
        time.sleep(0.0001)
    die_with(agent)


def park(channel: socket.socket, agent: int, intermediate: int, preloaded: frozenset[str]) -> protocol.WorkerBody:
    """Wait for the launch and set up its process; returns only if the worker runs the body in this interpreter.

    Args:
        channel: this worker's channel.
        agent: the agent's process id.
        intermediate: process id of the intermediate parent.
        preloaded: top-level modules that a bare interpreter does not have.
    """
    settle(agent, intermediate)
    _own_seeds()
    protocol.send(channel, {"parked": os.getpid()})
    message, fds = protocol.receive(channel)
    if message is None:
        os._exit(0)
    body_fd, stdout, stderr, page, stacks, rounds = fds
    body = protocol.read_body(body_fd)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    os.chdir(body["cwd"])
    loaded = dict(os.environ)
    body["env"] |= {PAGE_FD_ENV: str(page), ROUNDS_FD_ENV: str(rounds)}
    os.environ.clear()
    os.environ.update(body["env"])
    reason = body["exec_reason"] or _why_exec(body, preloaded)
    protocol.send(channel, {"how": f"exec: {reason}" if reason else "fork", "stacks": stacks})
    channel.close()
    _default_signals(python=not reason)
    body["env"], body["stacks"] = loaded, stacks
    if reason:
        for inherited in (page, rounds):
            os.set_inheritable(inherited, True)
        _exec(body)
    os.close(body_fd)
    return body


def take_over(body_fd: int, fresh: frozenset[str]) -> protocol.WorkerBody | None:
    """The launch of a fresh interpreter (``fresh.py``); None: the script must run without ftcore.

    Args:
        body_fd: memfd with the body; closed here.
        fresh: names of the modules that a bare interpreter has loaded.
    """
    body = protocol.read_body(body_fd)
    os.close(body_fd)
    os.set_inheritable(body["stacks"], False)
    if body["hooks"]:
        importlib.import_module(body["hooks"])
    if _why_exec(body, frozenset(name for name in sys.modules if "." not in name) - fresh):
        return None
    for name in (PAGE_FD_ENV, ROUNDS_FD_ENV):
        os.set_inheritable(int(os.environ[name]), False)
    return body


def _own_seeds() -> None:
    """Seed the random generators of this process, as in a new process. Python itself reseeds ``random``."""
    modules = sys.modules
    if "multiprocessing.process" in modules:
        from multiprocessing.process import current_process

        current_process().authkey = os.urandom(32)
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "torch" in modules:
        modules["torch"].default_generator.seed()


def _why_exec(body: protocol.WorkerBody, preloaded: frozenset[str]) -> str:
    """Why exec is needed: the script's directory has a module with the name of a preloaded one. Empty: not needed.

    Checking every loaded module instead would copy two thousand shared pages and take 4 ms.
    """
    first = first_path(body)
    try:
        entries = os.listdir(first)
    except OSError:
        return ""
    for entry in entries:
        name = entry.removesuffix(".py")
        if name not in preloaded:
            continue
        mine = os.path.join(first, entry) if entry != name else os.path.join(first, name, "__init__.py")
        if os.path.exists(mine) and not _same_file(sys.modules[name], mine):
            return f"{mine} shadows the preloaded module of that name"
    return ""


def _same_file(module: ModuleType, path: str) -> bool:
    origin = getattr(module, "__file__", None)
    return origin is not None and os.path.realpath(origin) == os.path.realpath(path)


def first_path(body: protocol.WorkerBody) -> str:
    """The first entry that python puts on the module path."""
    if body["module"]:
        return body["cwd"]
    path = os.path.realpath(body["argv"][0])
    return path if os.path.isdir(path) else os.path.dirname(path)


def _default_signals(*, python: bool) -> None:
    """Reset every signal to the disposition of a fresh process: python's own three, or none before an exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        wanted: object = signal.SIG_DFL
        if python and number == signal.SIGINT:
            wanted = signal.default_int_handler
        elif python and number in (signal.SIGPIPE, signal.SIGXFSZ):
            wanted = signal.SIG_IGN
        elif number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # started by nohup: keep ignoring SIGHUP
        if signal.getsignal(number) is not wanted:
            signal.signal(number, wanted)  # type: ignore[arg-type]
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _exec(body: protocol.WorkerBody) -> None:
    args = body["argv"]
    if not body["no_python"]:
        fd = protocol.body_fd(body)
        for inherited in (fd, body["stacks"]):
            os.set_inheritable(inherited, True)
        args = [body["python"], "-u", _FRESH, str(fd), _ROOT, *(["-m"] if body["module"] else []), *args]
    try:
        os.execvp(args[0], args)
    except OSError as error:
        print(f"cannot run {args[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)
