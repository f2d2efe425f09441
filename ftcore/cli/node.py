"""One node: puts an agent together from its parts and runs it.

In a container ``ftrun`` is the main process, and whatever it started dies with it. So where people are to be told of
things, a node whose job has ended waits for its own master, which ends when the last message is sent.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from ftcore.cli.ctl_hints import elsewhere
from ftcore.cli.narrator import Narrator
from ftcore.cli.places import MASTER_SAYS, master_socket, own_dir, private_dir
from ftcore.errors import FtcoreError
from ftcore.faults.extra import extra_rules
from ftcore.faults.scan import Hit
from ftcore.ids import JobName, Round
from ftcore.logs import open_store
from ftcore.policies.targets import targets
from ftcore.ports import EventLog, Supervisor
from ftcore.private import make_private
from ftcore.runtime.agent import processes
from ftcore.runtime.agent.agent import Agent, AgentConfig, Outcome
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
    """What ``ftrun`` was told about this node.

    Args:
        agent: the agent's own configuration.
        store: URL of the log store.
        output: where the workers' lines are shown.
        preload: modules for the warm process; None: no preload.
        leads: this node may put up candidates for the master role.
        alone: this agent is the whole job: a signal ends the job, not only the node.
        tells: what becomes of the job is told here, from the log.
        master_listen: gRPC target for a candidate; empty: a socket of this machine.
        master_log: file for a candidate's messages.
        log_level: of a candidate.
        upkeep: flags that tell a candidate how to keep the log small.
        platform: URL of what launches nodes; empty: nothing does.
        parent: process id of the ``ftrun`` that plays the platform, 0 if none: this agent dies with it.
        warm: the warm process, if it was started already.
        store_port: where the workers' store is served if that port is free; 0: on a free one.
        signals: those that end the node or the job in order.
    """

    agent: AgentConfig
    store: str
    output: Output
    preload: Sequence[str] | None
    leads: bool
    alone: bool
    master_listen: str
    master_log: Path
    log_level: str
    platform: str = ""
    tells: bool = False
    parent: int = 0
    upkeep: tuple[str, ...] = ()
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
        config: what ``ftrun`` was told about this node.
        supervise: makes the supervisor.

    Raises:
        FtcoreError: the store cannot be used, or the job refuses this node.
    """
    if config.parent:
        processes.die_with_parent(config.parent)
    reaper = Reaper()
    store = open_store(config.store)
    log = await store.open(JobName(config.agent.job), create=True)
    await log.last_seq()  # a store that does not answer is told now; later it would only be waited for
    own_dir(config.agent.state_dir, "the agents' own files")
    private_dir(config.agent.log_dir)
    agent: Agent | None = None
    candidates = Candidates(config, reaper, lambda reason: agent.cannot_lead(reason) if agent is not None else None)
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
        reaper.close()
        await log.close()
        await store.close()


def _narrator(config: NodeConfig, log: EventLog) -> Narrator:
    return Narrator(log, job=config.agent.job, store=elsewhere(config.store))


def _checker(config: NodeConfig, reaper: Reaper) -> HealthCheck:
    agent = config.agent
    context = Context(node=agent.node, devices=accelerators(), log_dir=str(agent.log_dir), address=agent.address)
    return HealthCheck(reaper, agent.env, context, agent.slots)


def _obey_signals(agent: Agent, candidates: "Candidates", signals: Sequence[signal.Signals], *, alone: bool) -> None:
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


def obeyed(signals: Sequence[signal.Signals]) -> tuple[signal.Signals, ...]:
    """Those of the signals that ask ``ftrun`` to end: not SIGHUP under ``nohup``, which has it ignored."""
    hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return tuple(number for number in signals if number != signal.SIGHUP or hung_up)


def signal_code(number: signal.Signals) -> int:
    """The exit code of an ``ftrun`` that a signal ended."""
    return 130 if number == signal.SIGINT else 5


def _leave_if_ignored(agent: Agent, number: signal.Signals) -> None:
    if not agent.following:
        agent.leave(f"{number.name}, and no master to tell", signal_code(number))


class Candidates:
    """Puts up processes that want the master role; they outlive this one.

    Args:
        config: of the node.
        reaper: waits for them.
        on_useless: told why one ended that cannot use the log.
    """

    def __init__(self, config: NodeConfig, reaper: Reaper, on_useless: Callable[[str], None]) -> None:
        self._config = config
        self._on_useless = on_useless
        self._reaper = reaper
        self._living: set[int] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def put_up(self, silent: int | None) -> None:
        """Start a candidate, unless one of ours lives.

        Args:
            silent: process id of one that led and is heard of no more: it may be frozen, and does not count; 0: nobody
                leads; None: somebody does, and a standby is wanted.
        """
        if self._living - {silent}:
            return
        config = self._config
        try:
            said = written(config.master_log)
            pid = spawn_master(
                store=config.store,
                job=config.agent.job,
                listen=config.master_listen,
                advertise=config.agent.address,
                log_level=config.log_level,
                log=config.master_log,
                env=os.environ,
                platform=config.platform,
                standby=silent is None,
                nodes=config.agent.submission.spec.nodes_max,
                upkeep=config.upkeep,
            )
        except OSError as error:  # whatever was taken from this machine, its workers train on
            self._on_useless(f"cannot start a master: {error}")
            return
        self._living.add(pid)
        self._none_left.clear()
        self._reaper.watch(pid, lambda code, mono: self._ended(pid, code, said))

    async def ended(self, timeout_s: float) -> None:
        """Wait until every candidate that was put up here has ended, but no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none_left.wait()

    def let_go(self) -> None:
        """Have nobody wait for them any longer."""
        self._none_left.set()

    def _ended(self, pid: int, code: int, said: int) -> None:
        self._living.discard(pid)
        if not self._living:
            self._none_left.set()
        if code in (1, 2):
            self._on_useless(last_words(self._config.master_log, said))


def written(log: Path) -> int:
    """How many bytes a file of messages has."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_words(log: Path, after: int) -> str:
    """What a candidate said when it ended.

    Args:
        log: the file with the messages of this node's candidates, those of other jobs of that name too.
        after: bytes that were in it before this candidate was started.
    """
    try:
        lines = log.read_bytes()[after:].decode(errors="replace").splitlines()
    except OSError:
        lines = []
    said = [line for line in lines[-5:] if line.startswith(MASTER_SAYS)]
    return said[-1].removeprefix(MASTER_SAYS) if said else f"the master ended unexpectedly; see {log}"


def spawn_master(
    *,
    store: str,
    job: str,
    listen: str,
    advertise: str,
    log_level: str,
    log: Path,
    env: Mapping[str, str],
    platform: str = "",
    standby: bool = False,
    nodes: int = 1,
    upkeep: Sequence[str] = (),
) -> int:
    """Start a candidate in a session of its own; returns its process id."""
    argv = [sys.executable, "-m", "ftcore.cli.master", "--store", store, "--job", job]
    argv += ["--listen", listen or master_socket(store), "--advertise", advertise, "--log-level", log_level]
    argv += ["--nodes", str(nodes), *(["--platform", platform] if platform else [])]
    argv += [*upkeep, *(["--standby"] if standby else [])]
    make_private(log.parent)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return processes.spawn(argv, env, {1: fd, 2: fd}, null=(0,))
    finally:
        os.close(fd)


def guarded(work: Callable[[], Outcome]) -> Outcome:
    """Turn the user's mistakes into one message and an exit code."""
    try:
        return work()
    except FtcoreError as error:
        return Outcome(exit_code=error.exit_code, outcome="refused", reason=str(error))
