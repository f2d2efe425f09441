"""What an agent needs to know, what it stands on, and how its work ends."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from ftcore.commands import CheckHealth
from ftcore.engine import actions as act
from ftcore.engine.agent import AgentCore
from ftcore.engine.orders import Slice
from ftcore.ids import Round
from ftcore.ports import Host, Journal, Launch, Performer
from ftcore.runtime.agent import samples
from ftcore.runtime.agent.environment import worker_env
from ftcore.runtime.agent.journal import FileJournal
from ftcore.runtime.checks.protocol import Said
from ftcore.runtime.host import HERE
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.security import NONE, Security

FAREWELL_S = 3.0
"""How long an agent that leaves waits for its last facts to be acknowledged."""

KILL_S = 1.0
"""What is kept of the time to leave for workers that ignored TERM."""

GOODBYE_S = FAREWELL_S + KILL_S
"""What an agent that leaves may need beside its workers' grace."""

LOG_ID_CHARS = 8
"""So much of a log's identity names the directory of its workers' logs."""


@attrs.frozen(kw_only=True)
class AgentConfig:
    """What an agent needs to know.

    Args:
        job: the job.
        node: the node's name.
        slots: workers to run.
        address: host name or address at which other nodes reach this one.
        submission: what was asked to be run.
        log_dir: directory for the workers' logs and error files; below it each log of the job has one of its own.
        state_dir: directory for the agent's own files; below it each log of the job has one of its own.
        env: environment that workers inherit.
        ordinal: the place asked for, or None.
        labels: what the node says of where it stands.
        security: what is shown to masters, and asked of them.
        lead_delay_s: how long nobody must lead before this agent puts up a candidate; None: it never does.
        leave_within_s: seconds from the word to leave until the node is taken away; None: the job's own grace.
        virtual_local_rank: each worker has LOCAL_RANK 0 and sees its own device alone.
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

    def launch(self, round_: Round, part: Slice, log_id: str) -> Launch:
        """What starts this node's workers of a round.

        Args:
            round_: the round.
            part: the node's part of its world.
            log_id: the log's identity.
        """
        spec, ranks = self.submission.spec, range(part.base_rank, part.base_rank + part.slots)
        kept = self.log_dir / log_id[:LOG_ID_CHARS] / f"round_{round_}"
        dirs = tuple(str(kept / f"rank_{rank}") for rank in ranks)
        envs = tuple(
            worker_env(
                self.env,
                part,
                i,
                job=self.job,
                role=spec.role,
                error_file=str(Path(dirs[i]) / "error.json"),
                virtual_local_rank=self.virtual_local_rank,
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


@attrs.frozen(kw_only=True)
class Outcome:
    """How an agent's work ended.

    Args:
        exit_code: what ``ftrun`` should exit with.
        outcome: ``succeeded``, ``failed``, ``stopped``; if the job goes on without this node ``left``, or ``lost`` if
            the launcher of its workers died.
        reason: one sentence.
    """

    exit_code: int
    outcome: str
    reason: str


@attrs.frozen(kw_only=True)
class AgentParts:
    """What an agent stands on beside its log and its supervisor; another world has others.

    Args:
        host: its machine.
        kernel: tells of the workers' processes.
        journal: opens the journal of its outbox, given the path of its file.
        performers: carry out orders that leave the processes in place, by type of command; ``CheckHealth`` is not
            among them, see ``Agent``.
        make_core: makes what decides.
    """

    host: Host = HERE
    kernel: samples.Kernel = samples
    journal: Callable[[Path], Journal] = FileJournal
    performers: Mapping[type[Any], Performer] = attrs.field(factory=dict)
    make_core: Callable[..., AgentCore] = AgentCore


class NodeChecker(Protocol):
    """Checks a node's devices and links; see ``HealthCheck``."""

    @property
    def accelerators(self) -> int:
        """How many accelerators the node has."""

    async def run(self, command: CheckHealth, effect: str) -> act.Findings:
        """Carry a check out; raises ``OSError`` if it cannot be made."""

    async def watch(self, told: Callable[[Said], None]) -> None:
        """Watch the accelerators until cancelled."""
