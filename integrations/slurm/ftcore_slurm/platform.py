"""Nodes of one Slurm job: reports those that Slurm takes away, and starts ftrun anew on those that it does not.

A running allocation can shrink, but not grow. So spares are asked for at submit: they join the job, and ftcore has them
ready. What this platform can launch is an agent that ended on a node that Slurm still gives to the job: as a further
step, ``srun --overlap``.

Slurm calls a node down some time after its slurmd has stopped answering, also if the node itself is well. Then the
allocation loses it, and its tasks are killed when slurmd comes back. ftcore's heartbeats find a dead node sooner; for a
living one, Slurm's word is a warning: what is there will end.
"""

import asyncio
import logging
import os
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

import attrs

from ftcore import CapacityChanged, LaunchRequest, NodeWarned, Occupant, PlatformEvent
from ftcore.errors import Refused, Unreachable
from ftcore_slurm import control
from ftcore_slurm.adapter import SlurmUrl
from ftcore_slurm.control import NodeView, beside_python
from ftcore_slurm.environment import REPLACEMENT_ENV, host_of

GONE: Final = ("down", "powered_down", "powering_down", "reboot_issued")
"""States in which Slurm takes a node from its job."""

FAILING: Final = ("fail", "failing")
"""An administrator wants the node to be given back."""

GONE_WITHIN_S: Final = 30.0
FAILING_WITHIN_S: Final = 600.0

PROBE_S: Final = 20.0
"""Longest time for a step that does nothing; a frozen node accepts connections, and starts none."""

logger = logging.getLogger(__name__)


class SlurmPlatform:
    """See ``ftcore.Platform``.

    Args:
        url: which job, and how.
    """

    def __init__(self, url: SlurmUrl) -> None:
        self._url = url
        self._bad: dict[str, str] = {}
        self._started: dict[str, list[str]] = {}
        self._children: set[asyncio.Task[None]] = set()

    async def capacity(self) -> int | None:
        """Unknown: which nodes have no agent is known to the master alone."""
        return None

    async def launch(self, request: LaunchRequest) -> None:
        """Start ftrun anew on the node of the replaced agent."""
        place = request.replaces
        if place is None:
            raise Refused("an allocation of Slurm cannot grow: ask for spares at submit (ftctl slurm script --spares)")
        host, step = host_of(place.node), f"ftcore-{zlib.crc32(request.effect.encode()):08x}"
        if host in self._bad:
            raise Refused(f"{host} is not to be used: {self._bad[host]}")
        mine = await control.nodes_of(self._url.job)
        view = (await control.views_of([host])).get(host) if host in mine else None
        drained = view is not None and view.state.startswith("drain") and view.reason.startswith("ftcore ")
        if view is None or view.state in GONE + FAILING or drained:
            how = f"is {view.state} for Slurm" if view is not None else "is not in the allocation any more"
            raise Refused(f"{host} {how}, and no other node of the allocation is free")
        dead = Refused(f"{host} does not answer, and no other node of the allocation is free")
        if await control.unreachable([host]):
            raise dead
        try:
            await control.ask(*self._step(host, "ftcore-probe", ["true"]), timeout_s=PROBE_S, env=clean_env(os.environ))
        except Unreachable:
            raise dead from None
        steps = await control.ask("squeue", "--all", "--noheader", "--steps", "--jobs", self._url.job, "--format=%j")
        if step in steps.split():
            return
        node = f"{host}.{step[-8:]}"
        argv = [beside_python("ftrun"), "--node-id", node, *_rank(place), *request.argv[1:]]
        self._started.setdefault(host, []).append(node)
        output = f"--output=ftcore-{self._url.job}-{node}.out"
        self._spawn(self._step(host, step, argv, output))

    def _step(self, host: str, name: str, argv: list[str], *flags: str) -> list[str]:
        number = os.environ.get("SLURM_JOB_ID", self._url.job)  # srun does not know a member of an array by its own
        where = [f"--jobid={number}", "--overlap", f"--nodelist={host}", "--nodes=1", "--ntasks=1"]
        how = ["--no-kill", "--quiet", "--export=ALL", "--cpu-bind=none"]
        return ["srun", *where, *how, f"--job-name={name}", *flags, *argv]

    def _spawn(self, argv: list[str]) -> None:
        """Run a step, without waiting for it; it outlives this process."""
        task = asyncio.create_task(_spawned(argv))
        self._children.add(task)
        task.add_done_callback(self._children.discard)

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """End an agent by its process; on a node that does not answer, ftcore's own fencing must do."""
        if place.pid:
            script = (
                f"grep -qsaE 'ft(run|core)' /proc/{place.pid}/cmdline || exit 0; "
                f"kill -TERM {place.pid}; i=0; while [ $i -lt {int(grace_s)} ] && kill -0 {place.pid}; "
                f"do sleep 1; i=$((i+1)); done; kill -KILL {place.pid}"
            )
            host = host_of(place.node)
            self._spawn(self._step(host, f"ftcore-end-{place.pid}", ["sh", "-c", f"({script}) 2>/dev/null; true"]))

    async def cordon(self, place: Occupant, reason: str) -> None:
        """Start no agent on the node again; ``ftctl slurm run`` drains it."""
        self._bad[host_of(place.node)] = reason

    async def watch(self) -> AsyncIterator[PlatformEvent]:
        """Warn of nodes that Slurm takes away, or that an administrator wants back."""
        yield CapacityChanged(free=None)  # an agent can be started anew
        first = await control.nodes_of(self._url.job)
        told: dict[str, str] = {}
        while True:
            mine = await control.nodes_of(self._url.job)
            views = await control.views_of(first)
            for node in first:
                warned = _warned(node, node in mine, views.get(node))
                if warned is None:
                    told.pop(node, None)
                elif told.get(node) != warned.reason:
                    told[node] = warned.reason
                    for name in (node, *self._started.get(node, ())):
                        yield attrs.evolve(warned, node=name)
            await asyncio.sleep(self._url.poll_s)

    async def close(self) -> None:
        """Steps that were started go on."""


def _warned(node: str, is_mine: bool, view: NodeView | None) -> NodeWarned | None:
    why = f": {view.reason}" if view is not None and view.reason else ""
    if not is_mine:
        return NodeWarned(node=node, reason=f"Slurm has taken it from the allocation{why}", within_s=GONE_WITHIN_S)
    if view is None:
        return None
    if view.state in FAILING:
        return NodeWarned(node=node, reason=f"Slurm: state {view.state}{why}", within_s=FAILING_WITHIN_S)
    if view.state in GONE:
        return NodeWarned(node=node, reason=f"Slurm: {view.state}{why}", within_s=GONE_WITHIN_S)
    return None


def _rank(place: Occupant) -> list[str]:
    return ["--node-rank", str(place.ordinal)] if place.ordinal is not None else []


def clean_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without the variables of the present step, which ``srun`` would take for its flags."""
    kept = {name: value for name, value in env.items() if not name.startswith("SLURM_") or name == "SLURM_CONF"}
    return kept | {REPLACEMENT_ENV: "1"}


async def _spawned(argv: list[str]) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=clean_env(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        logger.warning("srun: %s", error.strerror)
        return
    code = await process.wait()
    if code:
        logger.warning("%s ended with code %d", " ".join(argv[:8]), code)
