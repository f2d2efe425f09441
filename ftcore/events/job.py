"""Events of a job: what was asked for, how it goes, how it ended."""

import attrs

from ftcore.events.registry import decision, fact
from ftcore.timing import Timing

OWN_FIELDS = ("argv", "module", "no_python", "role")
"""Fields of a spec in which the nodes of a job with ``own_commands`` may differ."""


@attrs.frozen(kw_only=True)
class JobSpec:
    """What the user asked for: all of it that decisions depend on.

    A node joins a living job if the job's spec ``admits`` its own: if they are equal, the fields aside in which its
    nodes may differ. ``digest`` of ``job.submitted`` is computed from this.

    Args:
        argv: the script or module and its arguments.
        module: run ``argv[0]`` as ``python -m`` would.
        no_python: run ``argv[0]`` as a program.
        nodes_min: the job does not run with fewer nodes.
        nodes_max: the job does not use more nodes.
        node_unit: the world is a multiple of this many nodes.
        sizes: the only numbers of nodes that a world may have, the smallest first; empty: any within the bounds.
        order_by: the label of nodes by which ranks are laid out first, and by ordinals only then; empty: by ordinals.
        role: value of ROLE_NAME in the workers' environment.
        cwd: directory in which the workers start; empty: where the agent runs.
        timing: the job's time constants.
        own_commands: each node has a command and a role of its own, which its ``node.joined`` tells; ``argv``,
            ``module``, ``no_python`` and ``role`` are those of the node that submitted the job.
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
    timing: Timing = attrs.field(factory=Timing)
    own_commands: bool = False

    def admits(self, other: "JobSpec") -> bool:
        """Whether a node with the other spec takes part in this job."""
        if not (self.own_commands and other.own_commands):
            return self == other
        own = {name: getattr(self, name) for name in OWN_FIELDS}
        return self == attrs.evolve(other, **own)


@fact("job.submitted")
@attrs.frozen(kw_only=True)
class JobSubmitted:
    """A run of the job was asked for: the first of a log follows its first ``master.elected``, later ones an ended run.

    Args:
        job: name of the job.
        run: 1 for the first run in this log, then counting.
        spec: what to run.
        digest: hex digest of the spec; ``ftrun`` joins a living job only with an equal one.
        command: the command line as the user typed it, for people.
        versions: of ftcore, Python and (if imported) torch.
        user: who asked, as ``user@host``.
        launch: the one call that started this and other nodes; empty: each node was started by itself.
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
@attrs.frozen(kw_only=True)
class JobProgressed:
    """A sample of the training's progress, every ``progress_sample_s``.

    Args:
        round: the round that made it.
        step: newest step that every reporting node has completed.
        loss: the loss reported with it, if the script reports one.
    """

    round: int
    step: int
    loss: float | None = None


@decision("job.finished")
@attrs.frozen(kw_only=True)
class JobFinished:
    """The run ended.

    Args:
        outcome: ``succeeded``, ``failed`` or ``stopped``.
        exit_code: what ``ftrun`` exits with: 0, 1, 5 (stopped, resumable) or 130 (interrupted).
        reason: one sentence: what ended it and, if it failed, what to fix.
    """

    outcome: str
    exit_code: int
    reason: str


@fact("job.parked")
@attrs.frozen(kw_only=True)
class JobParked:
    """A fact could not be folded, or what follows from it is more than the log takes at once: the job is stuck, its
    workers are left running, an operator is needed.

    Args:
        error: why, in one line.
        fact: the fact as it came, in JSON, so that it is not lost; of a very large one the beginning.
        version: the ftcore that could not fold it.
    """

    error: str
    fact: str
    version: str


@fact("log.contradicted")
@attrs.frozen(kw_only=True)
class LogContradicted:
    """A node has seen events that this log does not hold: it was deleted, or restored from an older copy. The job is
    stuck, because workers of a world that this log does not know may run; an operator is needed.

    Args:
        node: the node.
        log_id: identity of the log that the node takes part in.
        seq: the last event that it knows to be durable there.
        digest: hex digest of that log up to there.
        reason: what contradicts what, and the ways out, for people.
    """

    node: str
    log_id: str
    seq: int
    digest: str
    reason: str


@fact("log.salvaged")
@attrs.frozen(kw_only=True)
class LogSalvaged:
    """The log was damaged; what could be read of it became this log, of which this is the first new event. No decision
    follows from it.

    Args:
        log_id: the new log's identity: what was kept on disk for the damaged one is not used any more.
        damaged: where the damaged log was put.
        last: the last event that was kept.
        lost: how many events came behind it; None: not known.
        reason: what could not be read.
    """

    log_id: str
    damaged: str
    last: int
    lost: int | None
    reason: str


@decision("job.unparked")
@attrs.frozen(kw_only=True)
class JobUnparked:
    """An operator let the stuck job go on; the fact that parked it stays set aside.

    Args:
        who: the operator.
    """

    who: str


@fact("checkpoint.committed")
@attrs.frozen(kw_only=True)
class CheckpointCommitted:
    """Every shard of a step's state is safe.

    Args:
        round: the round that saved it.
        step: the step.
        where: where it lies, for people.
        seconds: how long training stood still for it.
        kept: checkpoints that are kept, this one included; 0: not said.
    """

    round: int
    step: int
    where: str = ""
    seconds: float = 0.0
    kept: int = 0


@decision("job.rolled_back")
@attrs.frozen(kw_only=True)
class JobRolledBack:
    """The training goes back to an older step; what was saved after it is never resumed from.

    Args:
        step: the step whose checkpoint the next round resumes from.
        before: the newest completed step until now.
        reason: why.
    """

    step: int
    before: int | None
    reason: str


@decision("data.skipped")
@attrs.frozen(kw_only=True)
class DataSkipped:
    """So much of the data is left out from a step on.

    Args:
        step: the step after which it is left out.
        amount: how much.
        unit: ``batches`` or ``tokens``.
        reason: why.
    """

    step: int
    amount: int
    unit: str
    reason: str
