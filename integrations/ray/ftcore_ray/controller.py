"""The controller of a job: a detached actor that starts the actors of nodes, and sees them end.

It outlives drivers and masters, so it knows which request has started which node, and every end is reported to every
new master. If it dies, the nodes train on, and no node is replaced any more.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import ray
from ray._private.state import available_resources_per_node  # Ray's public figures are sums over all machines
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ftcore_ray.node import NAMESPACE, NodeProcess, node_env

ALL_DIED_S = 30.0
"""How long a job without any node may wait for a new one, or for the end of the job, after all its nodes have died."""

STATUS_S = 20.0
"""Longest time for a question to the job's log."""

FREED_S = 10.0
"""How long Ray may need to report that the resources of a node that has ended are free."""

ROUNDING = 1e-4
"""Ray counts in parts of this size."""


@attrs.define
class ControlledNode:
    """A node.

    Args:
        name: its name in the job.
        ordinal: its place.
        host: Ray's ID of the machine on which it was started.
        actor: the handle of its actor.
        pid: process ID of its ``ftrun``; 0: it has not started.
        ended: how it ended; empty: it has not.
        ended_at: when, in seconds of the event loop's clock.
        code: its exit code; None: it has none, because its actor died, or a signal ended its ``ftrun``.
    """

    name: str
    ordinal: int
    host: str
    actor: Any
    pid: int = 0
    ended: str = ""
    ended_at: float = 0.0
    code: int | None = None


class JobController:
    """The class of the actor.

    Args:
        name: of the actor; the names of nodes begin with it.
        job: the job's name.
        store: URL of the store of its log.
        argv: command line of ``ftrun``, without the flags that differ between nodes.
        env: variables of the job.
        cwd: directory in which nodes run.
        cpus, gpus: resources of a node's actor.
    """

    def __init__(
        self,
        name: str,
        job: str,
        store: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        cpus: float,
        gpus: float,
    ) -> None:
        self._name, self._job, self._store = name, job, store
        self._argv, self._env, self._cwd = tuple(argv), dict(env), cwd
        self._cpus, self._gpus = cpus, gpus
        self._nodes: dict[str, ControlledNode] = {}
        self._effects: set[str] = set()
        self._bad: set[str] = set()
        self._watching: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._version = 0
        self._seq_before: int | None = None

    async def begin(self, ordinals: Sequence[int]) -> str:
        """Start the first nodes; returns why none is started, or nothing."""
        self._seq_before = (await self._status()).get("last_seq")
        return await self.launch("start", ordinals)

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
            node = self._nodes[name] = ControlledNode(name, ordinal, host, actor.remote(argv, self._env, self._cwd))
            task = asyncio.create_task(self._watch(node))
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
        self._change()
        return ""

    async def _watch(self, node: ControlledNode) -> None:
        try:
            node.pid, _ = await node.actor.start.remote()
            code = await node.actor.wait.remote()
            node.ended = f"its ftrun ended with code {code}" if code >= 0 else f"signal {-code} ended its ftrun"
            node.code = code if code >= 0 else None
        except ray.exceptions.RayError as error:
            node.ended = f"its actor died: {type(error).__name__}"
        else:
            ray.kill(node.actor)  # frees its resources
        node.ended_at = asyncio.get_running_loop().time()
        self._change()

    def _change(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _free_hosts(self) -> list[str]:
        """Ray's ID of a machine for each node that could be started, machines with the fewest nodes first."""
        found: list[tuple[int, str]] = []
        available = available_resources_per_node()
        for host in ray.nodes():
            name = host["NodeID"]
            if not host["Alive"] or name in self._bad:
                continue
            used = sum(node.host == name and not node.ended for node in self._nodes.values())
            fits = self._fits(name, host["Resources"], available.get(name, {}), used)
            found += [(place, name) for place in range(used, fits)]
        return [host for _, host in sorted(found)]

    def _fits(self, host: str, total: Mapping[str, float], available: Mapping[str, float], used: int) -> int:
        """How many nodes a machine can hold, with those that it holds, beside what other work has of it.

        Ray's report of what is available is a little old: it may still lack what a node had that has just ended.
        """
        freed = asyncio.get_running_loop().time() - FREED_S
        own = sum(node.host == host and node.ended != "" and node.ended_at > freed for node in self._nodes.values())
        fits = []
        for name, each in (("CPU", self._cpus), ("GPU", self._gpus)):
            if each:
                here = total.get(name, 0.0)
                others = max(0.0, here - available.get(name, 0.0) - (used + own) * each)
                fits.append(int((here - others + ROUNDING) // each))
        return min(fits, default=used + 1)

    async def capacity(self) -> int:
        """Nodes that could be started now."""
        return len(self._free_hosts())

    async def delete(self, name: str, grace_s: float) -> None:
        """Begin to end a node."""
        node = self._nodes.get(name)
        if node is not None and not node.ended:
            node.actor.stop.remote(grace_s)

    async def cordon(self, name: str) -> None:
        """Start no more nodes of this job on the machine of a node."""
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
        """Wait until every node has ended; returns the job's exit code.

        It is the one in the log. If the log has none, it is the highest of the nodes; 1 if all have died.
        """
        while True:
            changed = self._changed
            if not all(node.ended for node in self._nodes.values()):
                await changed.wait()
                continue
            codes = [node.code for node in self._nodes.values() if node.code is not None]
            is_new, code = await self._outcome()
            if code is not None:
                return code
            if codes and not is_new:
                return max(codes)  # no ftrun has joined the job
            try:
                async with asyncio.timeout(ALL_DIED_S):
                    await changed.wait()
            except TimeoutError:
                _, code = await self._outcome()
                return max(codes, default=1) if code is None else code

    async def _outcome(self) -> tuple[bool, int | None]:
        """Whether the log has grown since the start, and the exit code of this run in it; None: it has none."""
        status = await self._status()
        is_new = status.get("last_seq") != self._seq_before
        code = status.get("exit_code") if is_new else None
        return is_new, None if code is None else int(code)

    async def _status(self) -> dict[str, Any]:
        """What ``ftctl status`` says, which runs as the nodes do; empty: there is no such job, or it is not known."""
        argv = (str(Path(sys.executable).with_name("ftctl")), "--store", self._store, "--job", self._job)
        process: asyncio.subprocess.Process | None = None
        try:
            async with asyncio.timeout(STATUS_S):
                process = await asyncio.create_subprocess_exec(
                    *(*argv, "status", "--format", "json"),
                    env=node_env(self._env, os.environ),
                    cwd=self._cwd,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.DEVNULL,
                )
                found: dict[str, Any] = json.loads((await process.communicate())[0])
                return found
        except (OSError, TimeoutError, ValueError):
            return {}
        finally:
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    async def close(self) -> None:
        """End all nodes at once."""
        for node in self._nodes.values():
            if not node.ended:
                ray.kill(node.actor)
