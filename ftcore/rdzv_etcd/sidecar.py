"""Torchrun's sidecar: the node's agent, with torchrun as its supervisor. ``handler`` starts it.

It ends with torchrun, and shortly after the job. Like every agent, it starts candidates for the master role; those are
separate processes and outlive it.
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
import msgspec

from ftcore.launch import lean  # noqa: F401  # isort: skip -- first of all
from ftcore.errors import FtcoreError, UsageError
from ftcore.events.job import JobSpec
from ftcore.launch import paths
from ftcore.launch.address import address_in, on_this_machine
from ftcore.launch.candidacy import Candidacy, archive_dir
from ftcore.launch.job import base_timing, narrates, submitted
from ftcore.launch.node import NodeConfig, guarded, run_node
from ftcore.launch.process import end_process, patient_stderr
from ftcore.launch.security import security_in_force
from ftcore.logs import check_job_name
from ftcore.logs.stores import opened
from ftcore.ports import Supervisor
from ftcore.rdzv_etcd import channel
from ftcore.rdzv_etcd.options import with_torchrun_flags
from ftcore.rdzv_etcd.orphans import Children
from ftcore.rdzv_etcd.supervisor import AgentCallbacks, TorchrunSupervisor
from ftcore.runtime.agent.agent import Agent
from ftcore.runtime.agent.config import AgentConfig, Outcome
from ftcore.runtime.agent.workers.reaper import Reaper
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
"""The nodes' first candidacies are spread over this time, so that not all nodes of a large job start one."""

GIVE_UP_S = 5.0
"""How long a torchrun that gave up waits for a master to end the job."""


def main() -> None:
    """Run torchrun's sidecar."""
    peer = socket.socket(fileno=int(sys.argv[1]))
    with patient_stderr():
        peer.set_inheritable(False)  # else a master that outlives this process would keep the channel open
        given = json.load(sys.stdin)
        configure(str(given.get("log_level", "warning")))
        outcome = guarded(lambda: asyncio.run(_run(given, peer)))
        reason = outcome.reason
        if outcome.outcome == "refused":
            reason = with_torchrun_flags(reason, given["store"])
        if outcome.outcome in ("failed", "stopped"):
            reason += f"; for details: ftctl --store {given['store']} explain --job {given['job']}"
        channel.send(peer, {"end": attrs.asdict(outcome) | {"reason": reason}})


async def _run(given: dict[str, Any], peer: socket.socket) -> Outcome:
    try:
        check_job_name(given["job"])
    except UsageError as error:
        raise UsageError(f"--rdzv-id: {error}") from error
    state_dir = paths.own_dir(paths.state_home() / "agents" / given["job"], "the agents' own files")
    with _claimed_name(given.get("node_id"), state_dir) as name:
        return await run_node(_config(given, name, state_dir), lambda *made: _supervise(given, peer, *made))


def _supervise(
    given: dict[str, Any], peer: socket.socket, config: NodeConfig, reaper: Reaper, agent: Callable[[], Agent | None]
) -> Supervisor:
    loop = asyncio.get_running_loop()

    def this_agent() -> Agent:
        found = agent()
        assert found is not None  # made in the same turn of the event loop as the supervisor
        return found

    def leave(reason: str, *, lost: bool = False) -> None:
        if not this_agent().over:
            this_agent().leave(reason, grace_s=0.0, lost=lost)

    def gave_up(reason: str, exit_code: int) -> None:
        this_agent().give_up(reason, exit_code)
        loop.call_later(GIVE_UP_S, leave, "torchrun gave up, and no master has ended the job")

    def close() -> None:
        this_agent().ask_to_stop("torchrun, which closed the rendezvous,", 5)

    async def why_no_world() -> str:
        return await _why_no_world(config, float(given["timeout"]))

    callbacks = AgentCallbacks(
        gave_up=gave_up, leave=leave, lost=partial(leave, lost=True), close=close, why_no_world=why_no_world
    )
    return TorchrunSupervisor(peer, config.agent.slots, callbacks, Children(int(given["pid"])))


def _config(given: dict[str, Any], name: str, state_dir: Path) -> NodeConfig:
    store, most = given["store"], given["nodes_max"]
    address = given["local_addr"] or address_in(store, alone=most == 1)
    agent = AgentConfig(
        job=given["job"],
        node=name,
        slots=given.get("slots", 1),
        address=address,
        submission=_submission(given),
        log_dir=state_dir,  # not used: torchrun has its own log directory
        writes_output=False,
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
    return NodeConfig(agent=agent, candidacy=candidacy, narrates=narrates(given.get("node_rank"), most))


def _submission(given: dict[str, Any]) -> Submission:
    timing = base_timing()
    if "join_window" in given:
        timing = msgspec.structs.replace(timing, join_window_s=given["join_window"])
    program = given.get("spec", {"argv": given["command"][:1]})
    spec = JobSpec(
        argv=tuple(program["argv"]),
        module=program.get("module", False),
        no_python=program.get("no_python", False),
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
def _claimed_name(wanted: str | None, state_dir: Path) -> Iterator[str]:
    """Claim a name for this node with a lock against other torchruns of the job on this machine.

    A restarted torchrun gets its old name again, and with it its ordinal.
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
    """Why no world was formed in time; empty if the job runs and this node is a spare."""
    try:
        async with opened(config.candidacy.store, config.agent.job) as log:
            state = await refold(log)
    except FtcoreError as error:
        return f"no world after {waited_s:g} s: {error}"
    spec = config.agent.submission.spec
    if state.rounds.world is not None and not has_ended(state):
        return ""
    available = plural(state.membership.available(), "node has", "nodes have")
    joined = f"{available} joined, the job needs at least {spec.nodes_min}"
    advice = "start torchrun on more nodes with the same --rdzv-id and --rdzv-endpoint"
    return f"no world after {waited_s:g} s: {joined}; {advice}"


if __name__ == "__main__":
    main()
    end_process(0)
