"""Composes and runs the agent of one node.

In a container ``ftrun`` is the main process, and every process that it started dies with it. So if the policy has alert
targets, or the job has observers, a node whose job has ended waits for its own master, which ends when the last alert
is sent and the observers have read the log to its end.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import structlog

from ftcore.commands import PaceSaves, ParkWorkers
from ftcore.errors import FtcoreError
from ftcore.faults.extra import extra_rules
from ftcore.faults.scan import Hit
from ftcore.ids import Round
from ftcore.launch.candidacy import Candidacy
from ftcore.launch.candidates import CandidateProcesses
from ftcore.launch.hints import elsewhere
from ftcore.launch.narrator import Narrator
from ftcore.launch.observing import END_S
from ftcore.launch.paths import own_dir, private_dir
from ftcore.launch.process import handled_signals, signal_code
from ftcore.logs.stores import opened
from ftcore.policies.file.job_options import CheckpointOptions
from ftcore.policies.targets import targets
from ftcore.ports import BoundaryControl, EventLog, ParkControl, Performer, RetainedLog, Supervisor
from ftcore.runtime.agent.agent import Agent
from ftcore.runtime.agent.checkpoints import NodeCheckpoints
from ftcore.runtime.agent.config import LEAVE_MARGIN_S, AgentConfig, AgentParts, Outcome
from ftcore.runtime.agent.health import HealthCheck, accelerators
from ftcore.runtime.agent.keeper_link import KeeperLink
from ftcore.runtime.agent.search import search
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.boundary import BoundaryPerformer, performers_of
from ftcore.runtime.agent.workers.output import Output
from ftcore.runtime.agent.workers.pace import SavePacer
from ftcore.runtime.agent.workers.parking import ParkPerformer, WorkerFault
from ftcore.runtime.agent.workers.prepared import PrepareOptions
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.agent.workers.supervisor import LocalSupervisor
from ftcore.runtime.agent.workers.warm_start import Started
from ftcore.runtime.checks.protocol import Context
from ftcore.runtime.keeper.config import CopyAccess, KeeperConfig
from ftcore.runtime.master.alerts import ALERT_FLUSH_S
from ftcore.runtime.wire.security import Security

STOP_REQUEST_S = 5.0
"""How long the node waits for the master to handle a stop request, before it ends by itself."""

LAST_ALERTS_S = ALERT_FLUSH_S + 1.0
"""How long the node of an ended job waits for the masters that it started, if they may have alerts to send."""

RESIGN_S = 2.0
"""How long a released node waits for the end of its candidates."""

logger = structlog.get_logger()

JOB_ENDED = ("succeeded", "failed", "stopped")
"""Outcomes of an agent that mean the end of the job, not only of the node."""


@attrs.frozen(kw_only=True)
class NodeConfig:
    """Configuration of a node.

    Args:
        agent: the agent's own configuration.
        candidacy: configuration of the candidates for the master role that this node starts.
        output: where the workers' lines are printed.
        preload: modules for the warm process; None: no preload.
        leads: this node may start candidates.
        alone: the job has only this node: a signal ends the job, not only the node.
        narrates: the narration of the job is printed here.
        parent: process id of the ``ftrun --local-nodes`` with which this agent dies; 0 if none.
        warm: the warm process, if it was already started.
        store_port: preferred port of the workers' store; 0: any free port.
        signals: signals that shut the node or the job down gracefully.
        prepare: ``standby``: workers are started before their round on a node without a round; ``always``: also beside
            running workers; empty: never.
    """

    agent: AgentConfig
    candidacy: Candidacy
    output: Output = attrs.field(factory=Output)
    preload: Sequence[str] | None = None
    leads: bool = True
    alone: bool = False
    narrates: bool = False
    parent: int = 0
    warm: Started | None = None
    store_port: int = 0
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    prepare: str = ""


Supervise = Callable[[NodeConfig, Reaper, Callable[[], Agent | None]], Supervisor]
"""Makes the supervisor of a node's workers; the third argument returns the agent, which is made after it."""


def _local(config: NodeConfig, reaper: Reaper, agent: Callable[[], Agent | None]) -> Supervisor:
    """Make ftcore's own supervisor, which runs workers as local processes."""

    def store_lost(round_: Round) -> None:
        if (found := agent()) is not None:
            found.store_lost(round_)

    def matched(round_: Round, rank: int, hit: Hit) -> None:
        if (found := agent()) is not None:
            found.matched(round_, rank, hit)

    def noticed(fault: WorkerFault) -> None:
        if (found := agent()) is not None:
            found.noticed(fault)

    policy = config.agent.submission.policy
    prepare = PrepareOptions(config.agent.prepared_launch(), config.prepare == "always") if config.prepare else None
    return LocalSupervisor(
        env=config.agent.env,
        preload=config.preload,
        nproc=config.agent.slots,
        store_port=config.store_port,
        output=config.output,
        on_store_lost=store_lost,
        reaper=reaper,
        on_match=matched,
        on_fault=noticed,
        rules=extra_rules(policy.rules, policy.source),
        warm=config.warm,
        prepare=prepare,
    )


async def run_node(config: NodeConfig, supervise: Supervise = _local) -> Outcome:
    """Run the node until the job has ended or the node is released.

    Args:
        config: configuration of the node.
        supervise: makes the supervisor.

    Raises:
        FtcoreError: the store cannot be used, or the job refuses this node.
    """
    if config.parent:
        processes.die_with_parent(config.parent)
    async with opened(config.candidacy.store, config.agent.job, create=True) as log:
        await log.last_seq()  # report an unreachable store now; later, the agent would only wait for it
        own_dir(config.agent.state_dir, "the agents' own files")
        private_dir(config.agent.log_dir)
        reaper = Reaper()
        try:
            return await _run_agent(config, supervise, log, reaper)
        finally:
            reaper.close()


async def _run_agent(config: NodeConfig, supervise: Supervise, log: EventLog, reaper: Reaper) -> Outcome:
    agent: Agent | None = None
    candidates = CandidateProcesses(
        config.candidacy,
        config.agent.state_dir / f"{config.agent.node}.master.log",
        reaper,
        lambda reason: agent.cannot_lead(reason) if agent is not None else None,
    )
    is_first = False
    if config.leads and config.agent.lead_delay_s == 0:
        leader = await log.leader()
        if leader is None or not leader.alive:
            is_first = True
            candidates.start(0)
    supervisor = supervise(config, reaper, lambda: agent)
    keeper = await _keeper(config, reaper)
    outcome: Outcome | None = None
    try:
        at_boundaries = _at_boundaries(supervisor)
        checkpoints = _checkpoints(config, keeper)
        url = config.agent.submission.spec.checkpoints
        if is_first and keeper is not None and url:
            checkpoints.found(await search(reaper, url, config.agent.job))
        await checkpoints.prepare()
        agent = Agent(
            config.agent,
            log,
            supervisor,
            candidates.start if config.leads else None,
            _checker(config, reaper),
            parts=AgentParts(
                performers=checkpoints.performers(_performers(supervisor, at_boundaries)), checkpoints=checkpoints
            ),
        )
        leaving = Leaving(agent, at_boundaries)
        _handle_signals(agent, candidates, handled_signals(config.signals), leaving, alone=config.alone)
        async with _narrator(config, log) if config.narrates else contextlib.nullcontext():
            outcome = await agent.run()
            if outcome.outcome == "released":
                candidates.end()
                await candidates.ended(RESIGN_S)
            if outcome.outcome in JOB_ENDED:
                alerts_s = LAST_ALERTS_S if targets(config.agent.submission.policy.chain) else 0.0
                observers_s = END_S + 1.0 if config.candidacy.observe else 0.0
                await candidates.ended(alerts_s + observers_s)
            return outcome
    finally:
        if keeper is not None:
            await keeper.bye(outcome.outcome if outcome is not None else "failed")
            keeper.close()
        await supervisor.close()


async def _keeper(config: NodeConfig, reaper: Reaper) -> KeeperLink | None:
    """The link to the node's keeper; None if it cannot have one, which only the saves of scripts need."""
    agent = config.agent
    if not agent.keeper:
        return None
    tls = agent.security.tls
    copied = agent.submission.policy.declared.checkpoints.copies > 0 and agent.submission.spec.nodes_max > 1
    takes_copies = copied and (tls is None or tls.cert is not None)
    link = KeeperLink(reaper, agent.keeper, keeper_config(agent), agent.address if takes_copies else "")
    try:
        await link.open()
    except OSError as error:
        logger.warning("this node has no keeper: state is not saved in memory", reason=error.strerror)
        return None
    return link


def keeper_config(agent: AgentConfig) -> KeeperConfig:
    """The keeper's part of the job and of its policy file."""
    declared, spec = agent.submission.policy.declared.checkpoints, agent.submission.spec
    return KeeperConfig(
        job=agent.job,
        log="",
        node=agent.node,
        url=spec.checkpoints,
        keep=declared.kept or CheckpointOptions().kept,
        keep_every=declared.keep_every,
        memory=declared.memory,
        bandwidth=declared.bandwidth,
        access=_copy_access(agent.security),
    )


def _copy_access(security: Security) -> CopyAccess:
    tls = security.tls
    if tls is None:
        return CopyAccess(token=security.token)
    cert, key = (str(tls.cert), str(tls.key)) if tls.cert is not None and tls.key is not None else ("", "")
    return CopyAccess(token=security.token, ca=str(tls.ca), cert=cert, key=key, name=tls.name, mutual=tls.mutual)


def _checkpoints(config: NodeConfig, keeper: KeeperLink | None) -> NodeCheckpoints:
    declared = config.agent.submission.policy.declared.checkpoints
    checkpoints = NodeCheckpoints(keeper, declared.kept or CheckpointOptions().kept, declared.keep_every)
    if keeper is not None:
        keeper.events.persisted = checkpoints.on_persisted
        keeper.events.failed = checkpoints.on_failed
        keeper.events.loaded = checkpoints.on_loaded
        keeper.events.skipped = checkpoints.on_skipped
        keeper.events.positioned = checkpoints.on_positioned
        keeper.events.queue = checkpoints.on_queue
        keeper.events.replicas = checkpoints.on_replicas
        keeper.events.committed = checkpoints.on_committed
    return checkpoints


def _at_boundaries(supervisor: Supervisor) -> BoundaryPerformer | None:
    return BoundaryPerformer(supervisor, supervisor.progress) if isinstance(supervisor, BoundaryControl) else None


def _performers(supervisor: Supervisor, at_boundaries: BoundaryPerformer | None) -> dict[type[Any], Performer]:
    found = performers_of(at_boundaries)
    if isinstance(supervisor, LocalSupervisor):
        found[PaceSaves] = SavePacer(supervisor.boundaries, supervisor.progress)
    if isinstance(supervisor, ParkControl):
        found[ParkWorkers] = ParkPerformer(supervisor, supervisor.progress)
    return found


def _narrator(config: NodeConfig, log: RetainedLog) -> Narrator:
    return Narrator(log, job=config.agent.job, store=elsewhere(config.candidacy.store))


def _checker(config: NodeConfig, reaper: Reaper) -> HealthCheck:
    agent = config.agent
    context = Context(node=agent.node, devices=accelerators(), log_dir=str(agent.log_dir), address=agent.address)
    return HealthCheck(reaper, agent.env, context, agent.slots)


def _handle_signals(
    agent: Agent,
    candidates: CandidateProcesses,
    signals: Sequence[signal.Signals],
    leaving: "Leaving",
    *,
    alone: bool,
) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def handle(number: signal.Signals) -> None:
        seen.append(number)
        code = signal_code(number)
        if agent.over:
            candidates.stop_waiting()
        if len(seen) > 1:
            agent.leave(f"{number.name}, for the second time: the workers were killed", code, grace_s=0.0)
        elif alone:
            agent.ask_to_stop(f"{number.name} to ftrun", code)
            loop.call_later(STOP_REQUEST_S, _leave_if_ignored, agent, number)
        else:
            leaving.begin(number.name, code)

    for number in signals:
        loop.add_signal_handler(number, handle, number)


class Leaving:
    """Leaves the job after a signal, once it has saved a checkpoint if the workers can save on request.

    Args:
        agent: the agent that leaves.
        at_boundaries: carries out the save; None: there are no step boundaries.
    """

    def __init__(self, agent: Agent, at_boundaries: BoundaryPerformer | None) -> None:
        self._agent = agent
        self._at_boundaries = at_boundaries
        self._saving: asyncio.Task[None] | None = None

    def begin(self, reason: str, exit_code: int) -> None:
        """Leave now, or after the save."""
        if self._at_boundaries is None or not self._agent.following or not self._at_boundaries.can_save:
            self._agent.leave(reason, exit_code)
        elif self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save(self._at_boundaries, reason, exit_code))

    async def _save(self, at_boundaries: BoundaryPerformer, reason: str, exit_code: int) -> None:
        config, loop = self._agent.config, asyncio.get_running_loop()
        within_s, begun = config.leave_within_s or config.submission.spec.timing.stop_grace_s, loop.time()
        self._agent.warn(f"{reason} to its agent: it leaves the job", within_s)
        await at_boundaries.saved(within_s / 2)  # the other half is for the workers' own end
        left_s = within_s - (loop.time() - begun) - LEAVE_MARGIN_S
        self._agent.leave(reason, exit_code, max(0.0, left_s) if config.leave_within_s is not None else None)


def _leave_if_ignored(agent: Agent, number: signal.Signals) -> None:
    if not agent.following:
        agent.leave(f"{number.name}, and no master answers", signal_code(number))


def guarded(work: Callable[[], Outcome]) -> Outcome:
    """Call ``work``, and convert an ``FtcoreError`` to an outcome with message and exit code."""
    try:
        return work()
    except FtcoreError as error:
        return Outcome(exit_code=error.exit_code, outcome="refused", reason=str(error))
