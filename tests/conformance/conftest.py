"""The backends that the conformance suite runs on. A new one is one entry in ``BACKENDS``."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from log_harness import Harness, harness

Scenario = Callable[[Harness], Awaitable[Any]]
Conform = Callable[[Scenario], None]


def _tmp(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue("tmp_path") / uuid.uuid4().hex


def memory(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return harness(f"memory://{uuid.uuid4()}", shared=False)


def sqlite_directory(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return harness(f"sqlite://{_tmp(request)}", shared=True)


def sqlite_file(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return harness(f"sqlite://{_tmp(request)}.db", shared=True)


def etcd(request: pytest.FixtureRequest) -> AbstractAsyncContextManager[Harness]:
    return harness(request.getfixturevalue("etcd").url(uuid.uuid4().hex), shared=True)


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Harness]]] = {
    "memory": memory,
    "sqlite-directory": sqlite_directory,
    "sqlite-file": sqlite_file,
    "etcd": etcd,
}


def _conform(request: pytest.FixtureRequest, backend: str) -> Conform:
    def run(scenario: Scenario) -> None:
        async def main() -> None:
            async with BACKENDS[backend](request) as place:
                await scenario(place)

        asyncio.run(main())

    return run


def _marked(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.etcd) if name == "etcd" else name for name in names]


@pytest.fixture(params=_marked(list(BACKENDS)))
def conform(request: pytest.FixtureRequest) -> Conform:
    """Run a scenario on an empty store of each backend."""
    return _conform(request, request.param)


@pytest.fixture(params=_marked([name for name in BACKENDS if name != "memory"]))
def conform_shared(request: pytest.FixtureRequest) -> Conform:
    """The same, for backends that several processes can use."""
    return _conform(request, request.param)
