"""Faults by HTTP, for a server in another process: ``POST /control/NAME`` with the arguments as a JSON object."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

if TYPE_CHECKING:
    from .server import ApiServer


def operations(server: "ApiServer") -> dict[str, Callable[..., Any]]:
    """What can be called, by name; the arguments are those of the methods."""
    cluster, faults, frontend = server.cluster, server.faults, server.web
    return {
        "add-node": lambda **more: cluster.add_node(**more).meta["name"],
        "lose-node": cluster.lose_node,
        "regain-node": cluster.regain_node,
        "end-container": cluster.end_container,
        "evict": cluster.evict,
        "preempt": cluster.preempt,
        "miss-image": cluster.miss_image,
        "have-image": cluster.have_image,
        "add-fault": faults.add,
        "remove-fault": faults.remove,
        "clear-faults": faults.clear,
        "faults": faults.all,
        "stale": server.stale,
        "cut-watches": frontend.cut_watches,
        "refuse": server.refuse,
        "compact": server.store.compact,
        "token": server.token,
        "calls": lambda: {f"{verb} {resource}": count for (verb, resource), count in server.calls.items()},
    }


class Control:
    """Answers requests below ``/control/``."""

    def __init__(self, server: "ApiServer") -> None:
        self._operations = operations(server)

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.path.removeprefix("/control/")
        what = self._operations.get(name)
        if what is None:
            return web.Response(status=404, text=f"no operation {name!r}; known: {', '.join(self._operations)}\n")
        raw = await request.content.read()
        try:
            found = what(**(msgspec.json.decode(raw) if raw.strip() else {}))
            if inspect.isawaitable(found):
                found = await found
        except Exception as problem:
            return web.Response(status=400, text=f"{name}: {type(problem).__name__}: {problem}\n")
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")
