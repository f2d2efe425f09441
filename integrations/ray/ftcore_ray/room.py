"""The room of a job: a detached actor that starts the actors of nodes, and sees them end.

It outlives drivers and masters, so it knows which request has started which node, and every end is reported to every
new master. If it dies, the nodes train on, and no node is replaced any more.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ftcore_ray.node import NAMESPACE, NodeProcess

ALL_DIED_S = 30.0
"""How long a job without any node may wait for a new one, after the actors of all nodes have died."""


@attrs.define
class RoomNode:
    """A node.

    Args:
        name: its name in the job.
        ordinal: its place.
        host: Ray's ID of the machine on which it was started.
        actor: the handle of its actor.
        pid: process ID of its ``ftrun``; 0: it has not started.
        ended: how it ended; empty: it has not.
        code: its exit code; None: it has none, because its actor died.
    """

    name: str
    ordinal: int
    host: str
    actor: Any
    pid: int = 0
    ended: str = ""
    code: int | None = None


class RoomOfJob:
    """The class of the actor.

    Args:
        name: of the room; the names of nodes begin with it.
        argv: command line of ``ftrun``, without the flags that differ between nodes.
        env: variables of the job.
        cwd: directory in which nodes run.
        cpus, gpus: resources of a node's actor.
    """

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, cpus: float, gpus: float
    ) -> None:
        self._name, self._argv, self._env, self._cwd = name, tuple(argv), dict(env), cwd
        self._cpus, self._gpus = cpus, gpus
        self._nodes: dict[str, RoomNode] = {}
        self._effects: set[str] = set()
        self._bad: set[str] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._version = 0

    async def ready(self) -> bool:
        """Return once the actor runs."""
        return True

    async def launch(self, effect: str, ordinals: Sequence[int]) -> str:
        """Start a node for each place; returns why none is started, or nothing. One effect starts its nodes once."""
        if effect in self._effects:
            return ""
        hosts = self._free_hosts()
        if len(hosts) < len(ordinals):
            return f"the Ray cluster has room for {len(hosts)} more nodes with {self._cpus:g} CPUs, {self._gpus:g} GPUs"
        self._effects.add(effect)
        mark = hashlib.sha256(effect.encode()).hexdigest()[:6]
        for ordinal, host in zip(ordinals, hosts, strict=False):
            name = f"{self._name}-{ordinal}-{mark}"
            argv = (*self._argv[:1], "--node-id", name, "--node-rank", str(ordinal), *self._argv[1:])
            actor = ray.remote(NodeProcess).options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=self._cpus,
                num_gpus=self._gpus,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=host, soft=False),
            )
            node = self._nodes[name] = RoomNode(name, ordinal, host, actor.remote(argv, self._env, self._cwd))
            task = asyncio.create_task(self._watch(node))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
        self._change()
        return ""

    async def _watch(self, node: RoomNode) -> None:
        try:
            node.pid, _ = await node.actor.start.remote()
            node.code = await node.actor.wait.remote()
            node.ended = f"its ftrun ended with code {node.code}"
        except ray.exceptions.RayError as error:
            node.ended = f"its actor died: {type(error).__name__}"
        else:
            ray.kill(node.actor)  # frees its resources
        self._change()

    def _change(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _free_hosts(self) -> list[str]:
        """Ray's ID of a machine for each node that could be started, machines with the fewest nodes first."""
        found: list[tuple[int, str]] = []
        for host in ray.nodes():
            if not host["Alive"] or host["NodeID"] in self._bad:
                continue
            used = sum(node.host == host["NodeID"] and not node.ended for node in self._nodes.values())
            fits = int(host["Resources"].get("CPU", 0) // self._cpus) if self._cpus else used + 1
            if self._gpus:
                fits = min(fits, int(host["Resources"].get("GPU", 0) // self._gpus))
            found += [(place, host["NodeID"]) for place in range(used, fits)]
        return [host for _, host in sorted(found)]

    async def capacity(self) -> int:
        """Nodes that could be started now."""
        return len(self._free_hosts())

    async def delete(self, name: str, grace_s: float) -> None:
        """Begin to end a node."""
        node = self._nodes.get(name)
        if node is not None and not node.ended:
            node.actor.stop.remote(grace_s)

    async def cordon(self, name: str) -> None:
        """Start no more nodes on the machine of a node, if there is another."""
        node = self._nodes.get(name)
        if node is not None:
            self._bad.add(node.host)

    async def look(self, after: int) -> tuple[int, int, list[tuple[str, int, str]]]:
        """Wait until something has changed, for at most a minute.

        Args:
            after: the version that the caller knows; 0: none.

        Returns:
            The version, the capacity, and of each node that has ended: name, process ID and reason.
        """
        if after == self._version:
            try:
                async with asyncio.timeout(60):
                    await self._changed.wait()
            except TimeoutError:
                pass
        ended = [(node.name, node.pid, node.ended) for node in self._nodes.values() if node.ended]
        return self._version, len(self._free_hosts()), ended

    async def nodes(self) -> dict[str, int]:
        """The process ID of each node that has not ended."""
        return {node.name: node.pid for node in self._nodes.values() if not node.ended}

    async def over(self) -> int:
        """Wait until every node has ended; returns the job's exit code, 1 if the actors of all nodes have died."""
        while True:
            changed = self._changed
            if all(node.ended for node in self._nodes.values()):
                codes = [node.code for node in self._nodes.values() if node.code is not None]
                if codes:
                    return codes[-1] if codes[-1] >= 0 else 128 - codes[-1]
                try:
                    async with asyncio.timeout(ALL_DIED_S):
                        await changed.wait()
                except TimeoutError:
                    return 1
            else:
                await changed.wait()

    async def close(self) -> None:
        """End all nodes at once."""
        for node in self._nodes.values():
            if not node.ended:
                ray.kill(node.actor)
