"""The platform of a job in Ray: asks the job's controller."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import ray

from ftcore import CapacityChanged, LaunchRequest, NodeEnded, Occupant, PlatformEvent
from ftcore.errors import Refused, Unreachable
from ftcore_ray.adapter import RayUrl

ANSWER_S = 30.0
"""Timeout of an answer; the controller waits for nothing but the cluster's own state."""
LOOK_S = 90.0
"""Timeout of a look, which waits up to a minute for a change."""


class RayPlatform:
    """``ftcore.Platform`` on the controller of a URL. The process connects to the cluster with the first request."""

    def __init__(self, url: RayUrl) -> None:
        self._url = url
        self._connecting = asyncio.Lock()
        self._controller: Any = None

    async def _ask(self, method: str, *arguments: object, within_s: float = ANSWER_S) -> Any:
        try:
            async with asyncio.timeout(within_s):
                async with self._connecting:
                    if self._controller is None:
                        self._controller = await asyncio.to_thread(connect, self._url)
                return await getattr(self._controller, method).remote(*arguments)
        except TimeoutError as error:
            raise Unreachable(f"the controller {self._url.controller} has not answered for {within_s:g} s") from error
        except (ray.exceptions.RayError, ConnectionError, ValueError, RuntimeError) as error:
            self._controller = None
            raise Unreachable(f"the controller {self._url.controller}: {str(error).splitlines()[0]}") from error

    async def capacity(self) -> int | None:
        """See ``ftcore.Platform``."""
        return int(await self._ask("capacity"))

    async def launch(self, request: LaunchRequest) -> None:
        """See ``ftcore.Platform``."""
        if request.replaces is None or request.replaces.ordinal is None:
            raise Refused("a controller starts nodes only for known places")
        refused = await self._ask("launch", request.effect, [request.replaces.ordinal])
        if refused:
            raise Refused(refused)

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``ftcore.Platform``."""
        await self._ask("delete", place.node, grace_s)

    async def cordon(self, place: Occupant, reason: str) -> None:
        """See ``ftcore.Platform``."""
        await self._ask("cordon", place.node)

    async def watch(self) -> AsyncIterator[PlatformEvent]:
        """See ``ftcore.Platform``."""
        version = 0
        while True:
            version, free, ended = await self._ask("look", version, within_s=LOOK_S)
            yield CapacityChanged(free=free)
            for name, pid, reason in ended:
                yield NodeEnded(node=name, reason=reason, pid=pid)

    async def close(self) -> None:
        """See ``ftcore.Platform``."""
        if self._controller is not None:
            await asyncio.to_thread(ray.shutdown)


def connect(url: RayUrl) -> Any:
    """The handle of a controller; connects this process to the cluster.

    Raises:
        ValueError: the cluster has no such controller.
        ConnectionError: there is no cluster at the address.
    """
    if not ray.is_initialized():
        ray.init(
            address=url.address,
            namespace=url.namespace,
            log_to_driver=False,
            configure_logging=False,
            logging_level="error",
        )
    return ray.get_actor(url.controller, namespace=url.namespace)
