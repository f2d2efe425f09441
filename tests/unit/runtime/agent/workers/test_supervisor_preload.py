"""Preloads: none, one that makes forking unsafe, ones that cannot be imported. Each test has its own node."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from supervisor_harness import Node

from ftcore.errors import UsageError
from ftcore.runtime.agent.workers import processes, warm_start

PRINT = "import sys; print(sys.argv[1:], sys.stdout.write_through, 'ftcore.runtime.warm.serve' in sys.modules)"


def test_no_preload_means_fresh_interpreters(tmp_path: Path) -> None:
    """Without preload every worker is a fresh interpreter."""
    node = Node(tmp_path, preload=None)
    try:
        ended = node.run(node.ended(node.launch(node.script(PRINT), workers=2)))
        assert ended.how == "exec: --no-preload"
        assert (ended.codes, ended.stdout) == ((0, 0), "[] True False\n")
    finally:
        node.close()


def test_a_warm_process_may_be_started_before_its_supervisor(tmp_path: Path) -> None:
    """It forks the workers, and ends with the supervisor."""
    started = warm_start.start(os.environ, ())
    node = Node(tmp_path, warm=started)
    node.before.discard(started.pid)
    try:
        ended = node.run(node.ended(node.launch(node.script("import os; print(os.environ['FTCORE_AGENT'])"))))
        assert (ended.how, ended.stdout) == ("fork", f"{started.tag}\n")
        assert started.pid in processes.children(os.getpid())
    finally:
        node.close()


def test_a_warm_process_that_ended_before_its_supervisor_is_restarted(tmp_path: Path) -> None:
    """Its end is detected although it came before the supervisor."""
    started = warm_start.start(os.environ, ())
    os.kill(started.pid, signal.SIGKILL)
    os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
    node = Node(tmp_path, warm=started)
    try:
        assert node.run(node.ended(node.launch(node.script(PRINT)))).how == "fork"
    finally:
        node.close()


UNSAFE = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"


def test_a_preload_that_starts_threads_is_not_forked(tmp_path: Path) -> None:
    """Every worker is then a fresh interpreter, and the reason is reported."""
    (tmp_path / "threaded.py").write_text(UNSAFE)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    node = Node(tmp_path, env=env, preload=("threaded",))
    try:
        ended = node.run(node.ended(node.launch(node.script(PRINT))))
        assert ended.how == "exec: a module of --preload threaded started a thread"
    finally:
        node.close()


def test_a_preload_that_cannot_be_imported_is_the_users_error(tmp_path: Path) -> None:
    """The module and its error are reported at the next launch."""
    (tmp_path / "bad.py").write_text("raise ValueError('of no use')")
    node = Node(tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, preload=("bad",))
    try:
        with pytest.raises(UsageError, match="cannot preload bad: ValueError: of no use"):
            node.run(node.supervisor.start(node.launch(node.script(PRINT))))
    finally:
        node.close()


def test_a_warm_process_that_dies_while_importing_is_the_users_error(tmp_path: Path) -> None:
    """After three tries the launch fails with the output of the warm process."""
    (tmp_path / "bad.py").write_text("import os; print('last words', flush=True); os._exit(1)")
    node = Node(tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, preload=("bad",))
    try:
        with pytest.raises(UsageError, match="ended 3 times while it imported bad"):
            node.run(node.supervisor.start(node.launch(node.script(PRINT))))
    finally:
        node.close()


def test_a_warm_process_killed_during_imports_is_restarted(tmp_path: Path) -> None:
    """The launch waits for the imports of the next one."""
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.2)")
    node = Node(tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, preload=("slow",))

    async def scene() -> None:
        starting = asyncio.ensure_future(node.ended(node.launch(node.script("pass"))))
        await asyncio.sleep(0)
        for _ in range(2):
            old = node.supervisor._warm.pid
            os.kill(old, signal.SIGKILL)
            while node.supervisor._warm.pid == old:
                await asyncio.sleep(0.005)
        assert (await starting).codes == (0,)

    try:
        node.run(scene())
    finally:
        node.close()


CLIENT = (
    "import datetime, sys, torch.distributed as dist\n"
    "store = dist.TCPStore('127.0.0.1', int(sys.argv[1]), timeout=datetime.timedelta(seconds=60))\n"
    "store.set('k', 'v'); print(store.get('k'))"
)


def has_torch(pid: int) -> bool:
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_without_torch_in_the_preload_a_store_starts_with_its_first_client(tmp_path: Path) -> None:
    """A job that uses no store does not pay for torch; stores of rounds without clients can be replaced."""
    node = Node(tmp_path, preload=("json",))

    async def scene() -> None:
        ports = [(await node.supervisor.open_store(node.next_round(), "127.0.0.1"))[1] for _ in range(3)]
        assert not has_torch(node.supervisor._store.pid)
        for port in ports[1:]:
            ended = await node.ended(node.launch(node.script(CLIENT), str(port)))
            assert ended.stdout == "b'v'\n", ended.stderr
        assert has_torch(node.supervisor._store.pid)
        with pytest.raises(ConnectionRefusedError):  # only the stores of two rounds are kept
            await asyncio.open_connection("127.0.0.1", ports[0])

    try:
        node.run(scene())
        assert node.lost == []
    finally:
        node.close()


def test_a_store_that_cannot_start_for_its_first_client_is_lost(tmp_path: Path) -> None:
    """The agent learns it as of a store host that was killed."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so: cannot open shared object file')")
    node = Node(tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, preload=("json",))
    round_ = node.next_round()

    async def scene() -> None:
        _, port = await node.supervisor.open_store(round_, "127.0.0.1")
        store = node.supervisor._store
        old = store.pid
        with contextlib.suppress(ConnectionError):  # the host may end while the client connects
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            assert await reader.read() == b""
        while store.pid in (0, old):  # the next host has started: `close` would not wait for one that is being forked
            await asyncio.sleep(0.005)

    try:
        node.run(scene())
        assert node.lost == [round_]
    finally:
        node.close()
