"""Events of a job: submission, progress, end."""

import msgspec

from ftcore.batch import BatchRule
from ftcore.events.payload import Payload
from ftcore.events.registry import decision, fact
from ftcore.timing import Timing

OWN_FIELDS = ("argv", "module", "no_python", "role")
"""Fields of a spec in which the nodes of a job with ``own_commands`` may differ."""


class BatchSpec(Payload, frozen=True, kw_only=True):
    """The global batch that the user wants.

    Args:
        size: samples of one step over all ranks of the largest world.
        micro: samples of a micro-batch; 0: each rank computes all of its samples at once.
        rule: what follows when the world is smaller.
        slots: ranks of each node, if the permitted numbers of nodes depend on it; otherwise 0.
    """

    size: int
    micro: int = 0
    rule: BatchRule = BatchRule.KEEP
    slots: int = 0

    def __str__(self) -> str:
        micro = f" in micro-batches of {self.micro}" if self.micro else ""
        slots = f", {self.slots} workers per node" if self.slots else ""
        return f"{self.size}{micro} ({self.rule}{slots})"


class JobSpec(Payload, frozen=True, kw_only=True):
    """The user's request, as far as decisions depend on it.

    A node joins a running job if the job's spec ``admits`` the node's: if they are equal, apart from the fields in
    which nodes may differ. ``digest`` of ``job.submitted`` is computed from the spec.

    Args:
        argv: the script or module and its arguments.
        module: run ``argv[0]`` as ``python -m`` would.
        no_python: run ``argv[0]`` as a program.
        nodes_min: the job does not run with fewer nodes.
        nodes_max: the job does not use more nodes.
        node_unit: the world is a multiple of this many nodes.
        sizes: the allowed numbers of nodes of a world, ascending; empty: any within the bounds.
        order_by: the node label that orders ranks; nodes of equal label are ordered by ordinal. Empty: by ordinal only.
        role: value of ROLE_NAME in the workers' environment.
        cwd: working directory of the workers; empty: that of the agent.
        timing: the job's time constants.
        own_commands: each node has its own command and role, recorded in its ``node.joined``; ``argv``, ``module``,
            ``no_python`` and ``role`` are those of the node that submitted the job.
        checkpoints: directory or URL of the job's checkpoints; empty: they are kept in memory only.
        batch: the global batch; None: it is the script's own affair.
    """

    argv: tuple[str, ...]
    module: bool = False
    no_python: bool = False
    nodes_min: int = 1
    nodes_max: int = 1
    node_unit: int = 1
    sizes: tuple[int, ...] = ()
    order_by: str = ""
    role: str = "default"
    cwd: str = ""
    timing: Timing = msgspec.field(default_factory=Timing)
    own_commands: bool = False
    checkpoints: str = ""
    batch: BatchSpec | None = None

    def admits(self, other: "JobSpec") -> bool:
        """Whether a node with the other spec may join this job."""
        if not (self.own_commands and other.own_commands):
            return self == other
        own = {name: getattr(self, name) for name in OWN_FIELDS}
        return self == msgspec.structs.replace(other, **own)


@fact("job.submitted")
class JobSubmitted(Payload, frozen=True, kw_only=True):
    """A run of the job was submitted: after the log's first ``master.elected``, or after the previous run has ended.

    Args:
        job: name of the job.
        run: number of the run in this log, from 1.
        spec: what to run.
        digest: hex digest of the spec; ``ftrun`` joins a running job only with an equal one.
        command: the command line as the user typed it, for display.
        versions: of ftcore, Python and (if imported) torch.
        user: the submitting user, as ``user@host``.
        launch: the command that launched this and other nodes; empty: each node was started separately.
    """

    job: str
    run: int
    spec: JobSpec
    digest: str
    command: tuple[str, ...]
    versions: dict[str, str]
    user: str
    launch: str = ""


@fact("job.progressed", ignorable=True)
class JobProgressed(Payload, frozen=True, kw_only=True):
    """A sample of the training's progress, every ``progress_sample_s``.

    Args:
        round: the round.
        step: newest step that every reporting node has completed.
        loss: the loss reported with it, if the script reports one.
        absolute: the step is known to count from the start of the training.
        reporting: the number of ranks that report a loss; 0: not known.
    """

    round: int
    step: int
    loss: float | None = None
    absolute: bool = False
    reporting: int = 0


@decision("job.finished")
class JobFinished(Payload, frozen=True, kw_only=True):
    """The run ended.

    Args:
        outcome: ``succeeded``, ``failed`` or ``stopped``.
        exit_code: exit code of ``ftrun``: 0, 1, 5 (stopped, resumable) or 130 (interrupted).
        reason: one sentence: what ended it and, if it failed, what to fix.
    """

    outcome: str
    exit_code: int
    reason: str


@fact("job.parked")
class JobParked(Payload, frozen=True, kw_only=True):
    """The job is stuck because a fact could not be folded, or its decisions exceed the size of one append. The workers
    keep running; an operator is needed.

    Args:
        error: why, in one line.
        fact: the fact in JSON, so that it is not lost; a very large one is truncated.
        version: the ftcore version that could not fold it.
    """

    error: str
    fact: str
    version: str


@fact("log.contradicted")
class LogContradicted(Payload, frozen=True, kw_only=True):
    """A node has seen events that this log does not contain: the log was deleted, or restored from an older copy. The
    job is stuck, because workers of a world that this log does not know may run; an operator is needed.

    Args:
        node: the node.
        log_id: identity of the log that the node has joined.
        seq: the last event of that log that the node knows to be durable.
        digest: hex digest of that log up to ``seq``.
        reason: the contradiction, and the operator's options.
    """

    node: str
    log_id: str
    seq: int
    digest: str
    reason: str


@fact("log.salvaged")
class LogSalvaged(Payload, frozen=True, kw_only=True):
    """The log was damaged, and its readable events became this log. This is the first new event; no decision follows
    from it.

    Args:
        log_id: the new log's identity: files kept for the damaged log are no longer used.
        damaged: path of the damaged log.
        last: the last event that was kept.
        lost: number of events after it that were lost; None: not known.
        reason: what could not be read.
    """

    log_id: str
    damaged: str
    last: int
    lost: int | None
    reason: str


@decision("job.unparked")
class JobUnparked(Payload, frozen=True, kw_only=True):
    """An operator resumed the stuck job; the fact that parked it is not folded.

    Args:
        who: the operator.
    """

    who: str


@decision("job.rolled_back")
class JobRolledBack(Payload, frozen=True, kw_only=True):
    """The training is rolled back to an older step; later checkpoints are never resumed from.

    Args:
        step: the step whose checkpoint the next round resumes from.
        before: the newest completed step before the rollback.
        reason: why.
    """

    step: int
    before: int | None
    reason: str


@decision("rate.lowered")
class RateLowered(Payload, frozen=True, kw_only=True):
    """The learning rate is lowered, for the next round and all later ones of the job while the policy is in its chain.

    Args:
        policy: the policy that lowers it.
        step: the step after which it is lower.
        factor: factor for the learning rate that the script sets, over all lowerings.
        before: that factor before.
        reason: why.
    """

    policy: str
    step: int
    factor: float
    before: float
    reason: str


@decision("data.skipped")
class DataSkipped(Payload, frozen=True, kw_only=True):
    """Part of the data is skipped.

    Args:
        step: the step after which data is skipped.
        amount: how much is skipped, in ``unit``.
        unit: ``batches`` or ``tokens``.
        reason: why.
    """

    step: int
    amount: int
    unit: str
    reason: str
