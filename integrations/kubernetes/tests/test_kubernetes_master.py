"""What the master's pod does with failures that nobody foresaw."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ftcore_kubernetes import master
from ftcore_kubernetes.adapter import KubernetesUrl
from ftcore_kubernetes.api import Api
from ftcore_kubernetes.config import ApiConfig
from ftcore_kubernetes.informer import CacheChange, Informer
from ftcore_kubernetes.platform import KubernetesPlatform
from ftcore_kubernetes.pool import WorkerPool
from kubernetes_site import NAME, SPACE, run, started

from ftcore import CapacityChanged, PlatformEvent
from ftcore.errors import Unreachable


@pytest.mark.parametrize("where", ["refresh", "watch"])
def test_a_defect_is_repeated_with_a_pause(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It neither ends the pod, whose failures are counted, nor does it spin."""
    monkeypatch.setattr(master, "RETRY_S", (0.01, 0.02))
    calls = 0

    def failed() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        raise KeyError("metadata")

    async def refresh(_: WorkerPool) -> dict[str, Any]:
        failed()
        return {}

    async def watch(_: KubernetesPlatform) -> AsyncIterator[PlatformEvent]:
        yield CapacityChanged(free=None)
        failed()

    async def scenario() -> None:
        async with started(1) as site:
            if where == "refresh":
                monkeypatch.setattr(WorkerPool, "refresh", refresh)
            else:
                monkeypatch.setattr(KubernetesPlatform, "watch", watch)
            async with asyncio.timeout(30):
                code = await master.MasterPod(KubernetesUrl(SPACE, NAME), site.config).run()
            assert code == 143 and calls == 3
            assert capsys.readouterr().err.count("ftctl k8s: KeyError: 'metadata'\nTraceback") == 3

    run(scenario)


def test_whatever_ends_a_cache_ends_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that waits for news for ever would replace no pod any more."""

    async def changes(_: Informer) -> AsyncIterator[CacheChange]:
        raise ValueError("unexpected")
        yield

    async def scenario() -> None:
        async with started(1) as site:
            monkeypatch.setattr(Informer, "changes", changes)
            with pytest.raises(Unreachable, match="ValueError: unexpected"):
                async with asyncio.timeout(30):
                    async for _ in site.open().watch():
                        pass
            assert "is not kept current" in caplog.text

    run(scenario)


@pytest.mark.parametrize("body", ["<html>sign in</html>", "[]"])
def test_an_answer_that_is_no_object_is_no_answer(body: str) -> None:
    """As of a proxy between the master and the API server."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        api = Api(ApiConfig(url=f"http://127.0.0.1:{port}"))
        with pytest.raises(Unreachable, match="no JSON object"):
            await api.get("/api/v1/namespaces")
        with pytest.raises(Unreachable):
            async for _ in api.watch("/api/v1/pods", 5):
                pass
        await api.close()
        server.close()

    run(scenario)
