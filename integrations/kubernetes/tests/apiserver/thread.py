"""The server in a thread of its own, for tests that are not asynchronous."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from .server import ApiServer


class ApiServerThread:
    """``with ApiServerThread(nodes=2) as running:`` the arguments are those of ``ApiServer``."""

    def __init__(self, **options: Any) -> None:
        self.server = ApiServer(**options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="apiserver", daemon=True)

    @property
    def url(self) -> str:
        """Where it serves."""
        return self.server.url

    def call(self, what: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a method of the server, its cluster or its faults in its thread: ``call(server.cluster.evict, ...)``."""

        async def inside() -> Any:
            found = what(*args, **options)
            return await found if inspect.isawaitable(found) else found

        return asyncio.run_coroutine_threadsafe(inside(), self._loop).result()

    async def _cancel(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.call(self.server.start)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.call(self.server.stop)
        finally:
            self._end()

    def _end(self) -> None:
        self.call(self._cancel)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
