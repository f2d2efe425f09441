"""One node: puts an agent together from its parts and runs it.

In a container ``ftrun`` is the main process, and whatever it started dies with it. So where people are to be told of
things, a node whose job has ended waits for its own master, which ends when the last message is sent.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence

import attrs

from ftcore.errors import FtcoreError
from ftcore.faults.extra import extra_rules
from ftcore.faults.scan import Hit
from ftcore.ids import Round
from ftcore.launch.candidacy import Candidacy
from ftcore.launch.candidates import Candidates
from ftcore.launch.hints import elsewhere
from ftcore.launch.narrator import Narrator
from ftcore.launch.paths import own_dir, private_dir
from ftcore.launch.process import obeyed, signal_code
from ftcore.logs.stores import opened
from ftcore.policies.targets import targets
from ftcore.ports import EventLog, Supervisor
from ftcore.runtime.agent import processes
from ftcore.runtime.agent.agent import Agent
from ftcore.runtime.agent.config import AgentConfig, Outcome
from ftcore.runtime.agent.health import HealthCheck, accelerators
from ftcore.runtime.agent.reaper import Reaper
from ftcore.runtime.agent.supervisor import LocalSupervisor, Output
from ftcore.runtime.agent.warm_start import Started
from ftcore.runtime.checks.protocol import Context
from ftcore.runtime.master.alerts import ALERTS_S

PATIENCE_S = 5.0
"""How long a signal to end the job waits for the master before the node ends by itself."""

LAST_WORDS_S = ALERTS_S + 1.0
"""How long an ended job's node waits for the masters that it started, if they may have people to tell."""

JOB_ENDED = ("succeeded", "failed", "stopped")
"""Outcomes of an agent whose job is over, not the node alone."""


@attrs.frozen(kw_only=True)
class NodeConfig:
    """What a node does in a job.

    Args:
        agent: the agent's own configuration.
        candidacy: of the candidates for the master role that this node starts.
        output: where the workers' lines are shown.
        preload: modules for the warm process; None: no preload.
        leads: this node may put up candidates.
        alone: this agent is the whole job: a signal ends the job, not only the node.
        tells: what becomes of the job is told here, from the log.
        parent: process id of the ``ftrun`` that plays the platform, 0 if none: this agent dies with it.
        warm: the warm process, if it was started already.
        store_port: where the workers' store is served if that port is free; 0: on a free one.
        signals: those that end the node or the job in order.
    """

    agent: AgentConfig
    candidacy: Candidacy
    output: Output = attrs.field(factory=Output)
    preload: Sequence[str] | None = None
    leads: bool = True
    alone: bool = False
    tells: bool = False
    parent: int = 0
    warm: Started | None = None
    store_port: int = 0
    signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


Supervise = Callable[[NodeConfig, Reaper, Callable[[], Agent | None]], Supervisor]
"""Makes what runs a node's workers, given how to reach its agent, which is made after it."""


def _local(config: NodeConfig, reaper: Reaper, agent: Callable[[], Agent | None]) -> Supervisor:
    """ftcore's own: processes of this machine."""

    def store_lost(round_: Round) -> None:
        if (found := agent()) is not None:
            found.store_lost(round_)

    def matched(round_: Round, rank: int, hit: Hit) -> None:
        if (found := agent()) is not None:
            found.matched(round_, rank, hit)

    policy = config.agent.submission.policy
    return LocalSupervisor(
        env=config.agent.env,
        preload=config.preload,
        nproc=config.agent.slots,
        store_port=config.store_port,
        output=config.output,
        on_store_lost=store_lost,
        reaper=reaper,
        on_match=matched,
        rules=extra_rules(policy.rules, policy.source),
        warm=config.warm,
    )


async def run_node(config: NodeConfig, supervise: Supervise = _local) -> Outcome:
    """Run the node until the job has ended or the node is told to leave.

    Args:
        config: what the node does.
        supervise: makes the supervisor.

    Raises:
        FtcoreError: the store cannot be used, or the job refuses this node.
    """
    if config.parent:
        processes.die_with_parent(config.parent)
    async with opened(config.candidacy.store, config.agent.job, create=True) as log:
        await log.last_seq()  # a store that does not answer is told now; later it would only be waited for
        own_dir(config.agent.state_dir, "the agents' own files")
        private_dir(config.agent.log_dir)
        reaper = Reaper()
        try:
            return await _run_agent(config, supervise, log, reaper)
        finally:
            reaper.close()


async def _run_agent(config: NodeConfig, supervise: Supervise, log: EventLog, reaper: Reaper) -> Outcome:
    agent: Agent | None = None
    candidates = Candidates(
        config.candidacy,
        config.agent.state_dir / f"{config.agent.node}.master.log",
        reaper,
        lambda reason: agent.cannot_lead(reason) if agent is not None else None,
    )
    if config.leads and config.agent.lead_delay_s == 0:
        leader = await log.leader()
        if leader is None or not leader.alive:
            candidates.put_up(0)
    supervisor = supervise(config, reaper, lambda: agent)
    try:
        agent = Agent(
            config.agent, log, supervisor, candidates.put_up if config.leads else None, _checker(config, reaper)
        )
        _obey_signals(agent, candidates, obeyed(config.signals), alone=config.alone)
        async with _narrator(config, log) if config.tells else contextlib.nullcontext():
            outcome = await agent.run()
            if outcome.outcome in JOB_ENDED and targets(config.agent.submission.policy.chain):
                await candidates.ended(LAST_WORDS_S)
            return outcome
    finally:
        await supervisor.close()


def _narrator(config: NodeConfig, log: EventLog) -> Narrator:
    return Narrator(log, job=config.agent.job, store=elsewhere(config.candidacy.store))


def _checker(config: NodeConfig, reaper: Reaper) -> HealthCheck:
    agent = config.agent
    context = Context(node=agent.node, devices=accelerators(), log_dir=str(agent.log_dir), address=agent.address)
    return HealthCheck(reaper, agent.env, context, agent.slots)


def _obey_signals(agent: Agent, candidates: Candidates, signals: Sequence[signal.Signals], *, alone: bool) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def obey(number: signal.Signals) -> None:
        seen.append(number)
        code = signal_code(number)
        if agent.over:
            candidates.let_go()
        if len(seen) > 1:
            agent.leave(f"{number.name}, for the second time: the workers were killed", code, grace_s=0.0)
        elif alone:
            agent.ask_to_stop(f"{number.name} to ftrun", code)
            loop.call_later(PATIENCE_S, _leave_if_ignored, agent, number)
        else:
            agent.leave(number.name, code)

    for number in signals:
        loop.add_signal_handler(number, obey, number)


def _leave_if_ignored(agent: Agent, number: signal.Signals) -> None:
    if not agent.following:
        agent.leave(f"{number.name}, and no master to tell", signal_code(number))


def guarded(work: Callable[[], Outcome]) -> Outcome:
    """Turn the user's mistakes into one message and an exit code."""
    try:
        return work()
    except FtcoreError as error:
        return Outcome(exit_code=error.exit_code, outcome="refused", reason=str(error))
