"""Torchrun's sidecar: the node's agent, with torchrun as its supervisor. Run by ``handler``, never by hand.

It ends with torchrun, whichever way that goes, and a moment after the job. It puts up candidates for the master role
as every agent does; those are processes of their own and outlive it.
"""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from ftcore.launch import lean  # noqa: F401  # isort: skip -- first of all
from ftcore.errors import FtcoreError, UsageError
from ftcore.events.job import JobSpec
from ftcore.launch import paths
from ftcore.launch.address import address_in, on_this_machine
from ftcore.launch.candidacy import Candidacy, archive_dir
from ftcore.launch.job import base_timing, submitted, tells_here
from ftcore.launch.node import NodeConfig, guarded, run_node
from ftcore.launch.process import end_process, patient_stderr
from ftcore.launch.security import security_in_force
from ftcore.logs import check_job_name
from ftcore.logs.stores import opened
from ftcore.ports import Supervisor
from ftcore.rdzv_etcd import channel
from ftcore.rdzv_etcd.options import in_torchruns_words
from ftcore.rdzv_etcd.orphans import Children
from ftcore.rdzv_etcd.supervisor import TorchrunSupervisor, Ways
from ftcore.runtime.agent.agent import Agent
from ftcore.runtime.agent.config import AgentConfig, Outcome
from ftcore.runtime.agent.reaper import Reaper
from ftcore.runtime.logging import configure
from ftcore.runtime.master.retention import Sizes
from ftcore.runtime.master.sequencer import refold
from ftcore.runtime.wire.frames import Submission
from ftcore.states.phases import has_ended
from ftcore.states.world import impossible
from ftcore.wording import plural

SIZES = Sizes()

LEAD_S_PER_NODE = 0.25
LEAD_S_MAX = 3.0
"""Over how long the nodes' first candidacies are spread: some are up at once, and never all of a large job."""

UNHEARD_S = 5.0
"""How long a torchrun that gave up waits for a master that takes it."""


def main() -> None:
    """Run torchrun's sidecar."""
    peer = socket.socket(fileno=int(sys.argv[1]))
    with patient_stderr():
        peer.set_inheritable(False)  # a master that outlives this process would hide its end from torchrun
        given = json.load(sys.stdin)
        configure(str(given.get("log_level", "warning")))
        outcome = guarded(lambda: asyncio.run(_run(given, peer)))
        reason = outcome.reason
        if outcome.outcome == "refused":
            reason = in_torchruns_words(reason, given["store"])
        if outcome.outcome in ("failed", "stopped"):
            reason += f"; the whole story: ftctl --store {given['store']} explain --job {given['job']}"
        channel.send(peer, {"end": attrs.asdict(outcome) | {"reason": reason}})


async def _run(given: dict[str, Any], peer: socket.socket) -> Outcome:
    try:
        check_job_name(given["job"])
    except UsageError as error:
        raise UsageError(f"--rdzv-id: {error}") from error
    state_dir = paths.own_dir(paths.state_home() / "agents" / given["job"], "the agents' own files")
    with _name(given.get("node_id"), state_dir) as name:
        return await run_node(_config(given, name, state_dir), lambda *made: _supervise(given, peer, *made))


def _supervise(
    given: dict[str, Any], peer: socket.socket, config: NodeConfig, reaper: Reaper, agent: Callable[[], Agent | None]
) -> Supervisor:
    loop = asyncio.get_running_loop()

    def here() -> Agent:
        found = agent()
        assert found is not None  # it is made in the turn of the loop in which the supervisor is
        return found

    def leave(reason: str, *, lost: bool = False) -> None:
        if not here().over:
            here().leave(reason, grace_s=0.0, lost=lost)

    def gave_up(reason: str, exit_code: int) -> None:
        here().give_up(reason, exit_code)
        loop.call_later(UNHEARD_S, leave, "torchrun gave up, and no master has ended the job")

    def close() -> None:
        here().ask_to_stop("torchrun, which closed the rendezvous,", 5)

    async def why_no_world() -> str:
        return await _why_no_world(config, float(given["timeout"]))

    return TorchrunSupervisor(
        peer,
        config.agent.slots,
        Ways(gave_up=gave_up, leave=leave, lost=partial(leave, lost=True), close=close, why_no_world=why_no_world),
        Children(int(given["pid"])),
    )


def _config(given: dict[str, Any], name: str, state_dir: Path) -> NodeConfig:
    store, most = given["store"], given["nodes_max"]
    address = given["local_addr"] or address_in(store, alone=most == 1)
    agent = AgentConfig(
        job=given["job"],
        node=name,
        slots=given.get("slots", 1),
        address=address,
        submission=_submission(given),
        log_dir=state_dir,  # not used: torchrun has its own
        state_dir=state_dir,
        env={},
        ordinal=given.get("node_rank"),
        security=security_in_force(store, given["job"], "" if on_this_machine(store) else address, "ftcore"),
        lead_delay_s=0.0 if most == 1 else random.uniform(0.0, min(LEAD_S_MAX, LEAD_S_PER_NODE * most)),
    )
    candidacy = Candidacy(
        store=store,
        job=given["job"],
        keep_events=given.get("keep_events", SIZES.keep),
        snapshot_events=given.get("snapshot_events", SIZES.snapshot),
        archive=archive_dir(given.get("archive")),
        advertise=address,
        nodes=most,
        log_level=str(given.get("log_level", "warning")),
    )
    return NodeConfig(agent=agent, candidacy=candidacy, tells=tells_here(given.get("node_rank"), most))


def _submission(given: dict[str, Any]) -> Submission:
    timing = base_timing()
    if "join_window" in given:
        timing = attrs.evolve(timing, join_window_s=given["join_window"])
    asked = given.get("spec", {"argv": given["command"][:1]})
    spec = JobSpec(
        argv=tuple(asked["argv"]),
        module=asked.get("module", False),
        no_python=asked.get("no_python", False),
        nodes_min=given["nodes_min"],
        nodes_max=given["nodes_max"],
        node_unit=given.get("node_unit", 1),
        role=given.get("role", "default"),
        timing=timing,
        own_commands=True,
    )
    if why := impossible(spec):
        raise UsageError(why)
    return submitted(
        spec, given.get("policy"), slots=given.get("slots", 1), command=given["command"], versions=given["versions"]
    )


@contextlib.contextmanager
def _name(wanted: str | None, state_dir: Path) -> Iterator[str]:
    """This node's name, held against other torchruns of the job on this machine.

    A torchrun that comes back finds its old name free, and with it its place.
    """
    host = socket.gethostname().partition(".")[0]
    names = iter([wanted]) if wanted else (host if n == 1 else f"{host}-{n}" for n in itertools.count(1))
    for name in names:
        fd = os.open(state_dir / f"{name}.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            continue
        try:
            yield name
        finally:
            os.close(fd)
        return
    raise UsageError(f"--rdzv-conf: node_id={wanted}: another torchrun of the job has this name on this machine")


async def _why_no_world(config: NodeConfig, waited_s: float) -> str:
    """Why torchrun has waited in vain; empty if the job runs and this node stands by."""
    try:
        async with opened(config.candidacy.store, config.agent.job) as log:
            state = await refold(log)
    except FtcoreError as error:
        return f"no world after {waited_s:g} s: {error}"
    spec = config.agent.submission.spec
    if state.world is not None and not has_ended(state):
        return ""
    there = f"{plural(state.available(), 'node is', 'nodes are')} there, the job needs at least {spec.nodes_min}"
    return f"no world after {waited_s:g} s: {there}; start torchrun on more nodes with the same --rdzv-id and endpoint"


if __name__ == "__main__":
    main()
    end_process(0)
