"""``pods/NAME/log``: what a container wrote; ``follow``, ``previous``, ``tailLines`` and ``container`` are heeded."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

from . import request as asked
from .status import bad_request
from .store import Stored

POLL_S = 0.1
PathOf = Callable[[str, str, bool], Path | None]
"""The file of a container's output, by pod uid and container name; True: of its run before the present one."""


class Logs:
    """Answers from files. ``running``: whether a pod's container may still write."""

    def __init__(self, path_of: PathOf, running: Callable[[str, str], bool]) -> None:
        self._path_of, self._running = path_of, running

    async def __call__(self, request: web.BaseRequest, pod: Stored) -> web.StreamResponse:
        query, names = request.query, [each["name"] for each in pod.object["spec"]["containers"]]
        inits = [each["name"] for each in pod.object["spec"].get("initContainers") or ()]
        name = query.get("container", "")
        if not name and len(names) > 1:
            raise bad_request(
                f"a container name must be specified for pod {pod.meta['name']}, choose one of: [{' '.join(names)}]"
            )
        name = name or names[0]
        if name not in names + inits:
            raise bad_request(f"container {name} is not valid for pod {pod.meta['name']}")
        previous = asked.flag(query, "previous")
        path = self._path_of(pod.meta["uid"], name, previous)
        if path is None:
            if previous:
                raise bad_request(f'previous terminated container "{name}" in pod "{pod.meta["name"]}" not found')
            if pod.object["status"].get("phase") == "Pending":
                text = f'container "{name}" in pod "{pod.meta["name"]}" is waiting to start: ContainerCreating'
                raise bad_request(text)
            return web.Response(text="")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        data = path.read_bytes()
        if query.get("tailLines"):
            count = asked.number("tailLines", query["tailLines"])
            lines = data.splitlines(keepends=True)
            await response.write(b"".join(lines[-count:] if count else []))
        else:
            await response.write(data)
        offset = len(data)
        while asked.flag(query, "follow"):
            over = not self._running(pod.meta["uid"], name)
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
            offset += len(data)
            if data:
                await response.write(data)
            elif over:
                break
            await asyncio.sleep(POLL_S)
        await response.write_eof()
        return response
