"""Main loop of the warm process: import, report ready, fork on request until the agent closes its end of the channel.

House rules: always a single thread; no torch operation, no CUDA, no grpc. A preload module that violates this (starts
threads or CUDA) is reported as ``unsafe``, and workers are then started by exec instead.

Workers are forked twice, from the main thread: the intermediate process exits at once, so the kernel reparents the
worker to the agent (a subreaper), which gets its exit status. Workers are forked before their launch and wait parked
(``child.park``), so that a launch needs no fork.
"""

import gc
import importlib
import json
import os
import socket
import sys
import warnings

from ftcore.runtime.warm import child, protocol, store, title
from ftcore.runtime.warm.protocol import CHANNEL_FD, DEFAULT_PRELOAD


def main(agent: int, modules: str, fresh: frozenset[str]) -> protocol.WorkerBody | None:
    """Serve until the agent ends.

    Args:
        agent: the agent's process id.
        modules: JSON list of the modules to import.
        fresh: names of the modules that a bare interpreter has loaded.

    Returns:
        In a launched worker: its body. In the warm process: None if a module cannot be imported.
    """
    child.die_with(agent)
    title.show("ftcore: warm process")
    os.closerange(CHANNEL_FD + 1, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # inherited by the agent
    channel = socket.socket(fileno=CHANNEL_FD)
    channel.set_inheritable(False)
    ready = _preload(json.loads(modules))
    protocol.send(channel, ready)
    if "missing" in ready:
        return None
    preloaded = frozenset(name for name in sys.modules if "." not in name) - fresh
    gc.collect()
    gc.freeze()
    while True:
        message, fds = protocol.receive(channel)
        if message is None:
            os._exit(0)
        made = _fork(len(fds))
        if made is None:
            for fd in fds:
                os.close(fd)
            continue
        index, intermediate = made
        channel.close()
        for other in fds[:index] + fds[index + 1 :]:
            os.close(other)
        mine = socket.socket(fileno=fds[index])
        if "store" in message:
            child.settle(agent, intermediate)
            title.show("ftcore: store host")
            store.serve(mine)
        return child.park(mine, agent, intermediate, preloaded)


def _preload(modules: list[str]) -> dict[str, object]:
    ours = [name for name in modules if name in DEFAULT_PRELOAD]
    theirs = [name for name in modules if name not in DEFAULT_PRELOAD]
    gc.disable()  # objects of torch's import are never garbage; collecting would take a sixth of the time
    for name in ours:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != name.partition(".")[0]:
                return {"missing": f"cannot import {name}: {error}"}
    gc.freeze()
    gc.enable()
    threads = _threads()
    for name in theirs:
        try:
            importlib.import_module(name)
        except BaseException as error:  # a module may do anything while it is imported, sys.exit included
            return {"missing": f"cannot preload {name}: {type(error).__name__}: {error}"}
    reason = ""
    if _threads() > threads:
        reason = f"a module of --preload {','.join(theirs)} started a thread"
    elif _device_open():
        reason = f"a module of --preload {','.join(theirs)} started CUDA"
    return {"ready": 1, "unsafe": reason}


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _device_open() -> bool:
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("/dev/nvidia"):
                return True
        except OSError:
            continue
    return False


def _fork(count: int) -> tuple[int, int] | None:
    """Fork ``count`` grandchildren. Returns None here; in a grandchild its index and the intermediate process's id."""
    intermediate = _plain_fork()
    if intermediate:
        os.waitpid(intermediate, 0)
        return None
    status = 1
    try:
        own = os.getpid()
        for index in range(count):
            if not _plain_fork():
                return index, own
        status = 0
    except OSError as error:
        print(f"cannot fork a worker: {error}", file=sys.stderr)
    os._exit(status)


def _plain_fork() -> int:
    # Python 3.12 warns about any second thread; numpy's idle threads are safe, others are reported as unsafe.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
