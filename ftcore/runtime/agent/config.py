"""Configuration, dependencies and outcome of an agent."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from ftcore.commands import CheckHealth
from ftcore.engine import actions as act
from ftcore.engine.agent import AgentCore
from ftcore.engine.orders import Slice
from ftcore.events.node import NodeJoined
from ftcore.ids import Round
from ftcore.ports import NO_ROUND, Host, Journal, Launch, Performer
from ftcore.runtime.agent.checkpoints import NodeCheckpoints
from ftcore.runtime.agent.link.journal import FileJournal
from ftcore.runtime.agent.telemetry import samples
from ftcore.runtime.agent.workers.environment import own_env, prepared_env, worker_env
from ftcore.runtime.checks.protocol import CheckReport
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.security import NONE, Security
from ftcore.version import __version__

LAST_FACTS_S = 3.0
"""How long an agent that leaves waits for its last facts to be acknowledged."""

KILL_S = 1.0
"""Time reserved for killing workers that ignore SIGTERM."""

LEAVE_MARGIN_S = LAST_FACTS_S + KILL_S
"""Time that a leaving agent needs in addition to its workers' grace period."""

LOG_ID_CHARS = 8
"""Length of the prefix of the log's identity that names the directory of the workers' logs."""


@attrs.frozen(kw_only=True)
class AgentConfig:
    """Configuration of an agent.

    Args:
        job: the job.
        node: the node's name.
        slots: number of workers.
        address: host name or address of this node for other nodes.
        submission: the job that the agent was asked to run.
        log_dir: directory for the workers' logs and error files, with a subdirectory per log of the job.
        state_dir: directory for the agent's own files, with a subdirectory per log of the job.
        env: environment that workers inherit.
        ordinal: the requested place; None: any.
        labels: labels of the node, such as its location.
        security: credentials shown to masters and required from them.
        lead_delay_s: seconds without a leader after which this agent starts a candidate; None: never.
        leave_within_s: seconds between the request to leave and the end of the node; None: the job's grace period.
        virtual_local_rank: each worker has LOCAL_RANK 0 and sees only its own device.
        keeper: path of the socket of this node's keeper; empty: the node has none.
        writes_output: the supervisor writes the workers' output to ``log_dir``; otherwise another launcher does.
    """

    job: str
    node: str
    slots: int
    address: str
    submission: frames.Submission
    log_dir: Path
    state_dir: Path
    env: Mapping[str, str]
    ordinal: int | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)
    security: Security = NONE
    lead_delay_s: float | None = 0.0
    leave_within_s: float | None = None
    virtual_local_rank: bool = False
    keeper: str = ""
    writes_output: bool = True

    def joined(
        self, incarnation: str, host: Host, checker: "NodeChecker | None", checkpoints: NodeCheckpoints, warms: bool
    ) -> NodeJoined:
        """The fact that an incarnation of the agent joins.

        Args:
            incarnation: the incarnation.
            host: its machine.
            checker: checks the node; None: there are no checks.
            checkpoints: what the node holds of the job's state.
            warms: it prepares interpreters, and reports when one is ready.
        """
        spec = self.submission.spec
        log, shards = checkpoints.prepared()
        return NodeJoined(
            node=self.node,
            incarnation=incarnation,
            slots=self.slots,
            host=host.name,
            pid=host.pid,
            address=self.address,
            version=__version__,
            ordinal=self.ordinal,
            labels=dict(self.labels),
            accelerators=checker.accelerators if checker is not None else 0,
            checks=checker is not None,
            role=spec.role if spec.own_commands else "",
            command=spec.argv if spec.own_commands else (),
            copies_port=checkpoints.copies_port,
            log=log,
            shards=shards,
            warms=warms,
        )

    def launch(self, round_: Round, part: Slice, log_id: str) -> Launch:
        """The launch of this node's workers of a round.

        Args:
            round_: the round.
            part: the node's part of its world.
            log_id: the log's identity.
        """
        spec, ranks = self.submission.spec, range(part.base_rank, part.base_rank + part.slots)
        kept = self.log_dir / log_id[:LOG_ID_CHARS] / f"round_{round_}"
        dirs = tuple(str(kept / f"rank_{rank}") for rank in ranks)
        own = own_env(part, round_, self.keeper, spec.checkpoints)
        envs = tuple(
            worker_env(
                self.env,
                part,
                i,
                job=self.job,
                role=spec.role,
                error_file=str(Path(dirs[i]) / "error.json"),
                virtual_local_rank=self.virtual_local_rank,
                own=own,
            )
            for i in range(part.slots)
        )
        return Launch(
            round=round_,
            argv=spec.argv,
            module=spec.module,
            no_python=spec.no_python,
            cwd=spec.cwd or str(Path.cwd()),
            envs=envs,
            log_dirs=dirs,
        )

    def prepared_launch(self) -> Launch:
        """The launch of this node's workers before they have a round."""
        part = Slice(
            group_rank=0,
            base_rank=0,
            slots=self.slots,
            size=self.slots,
            role_base_rank=0,
            role_size=self.slots,
            nodes=1,
            store_host="",
            store_port=0,
            restart_count=0,
            max_restarts=0,
        )
        launch = self.launch(NO_ROUND, part, "")
        dirs = tuple(str(self.log_dir / f"prepared_{self.node}" / f"worker_{i}") for i in range(self.slots))
        return attrs.evolve(launch, envs=tuple(map(prepared_env, launch.envs)), log_dirs=dirs)


@attrs.frozen(kw_only=True)
class Outcome:
    """How an agent's work ended.

    Args:
        exit_code: exit code of ``ftrun``.
        outcome: ``succeeded``, ``failed`` or ``stopped``; if the job continues without this node, ``released``,
            ``left``, or ``lost`` if the launcher of its workers died.
        reason: the reason, one sentence.
    """

    exit_code: int
    outcome: str
    reason: str


@attrs.frozen(kw_only=True)
class AgentParts:
    """Dependencies of an agent beside its log and its supervisor; the simulator replaces them.

    Args:
        host: the agent's machine.
        kernel: samples the workers' processes.
        journal: opens the journal of the outbox at a path.
        performers: carry out orders that keep the processes running, by type of command; without ``CheckHealth``, which
            ``Agent`` handles.
        make_core: creates the core.
        checkpoints: the agent's part in checkpoints.
    """

    host: Host = THIS_HOST
    kernel: samples.Kernel = samples
    journal: Callable[[Path], Journal] = FileJournal
    performers: Mapping[type[Any], Performer] = attrs.field(factory=dict)
    make_core: Callable[..., AgentCore] = AgentCore
    checkpoints: NodeCheckpoints = attrs.field(factory=NodeCheckpoints)


class NodeChecker(Protocol):
    """Checks a node's devices and links; see ``HealthCheck``."""

    @property
    def accelerators(self) -> int:
        """Number of accelerators of the node."""

    async def run(self, command: CheckHealth, effect: str) -> act.Findings:
        """Run a check; raises ``OSError`` if it cannot run."""

    async def watch(self, on_report: Callable[[CheckReport], None]) -> None:
        """Watch the accelerators until cancelled."""
