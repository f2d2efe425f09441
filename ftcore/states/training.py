"""How far the training has come. Data alone."""

import attrs

from ftcore.events.checkpoint import HeldShard, IntervalChosen


@attrs.frozen(kw_only=True)
class NanState:
    """The loss is NaN or infinite.

    Args:
        seq: the fact that reported it.
        round: the round in which it was seen.
        since: the first such step.
    """

    seq: int
    round: int
    since: int


@attrs.frozen(kw_only=True)
class Standstill:
    """No step is completed, and an alert was raised; the ranks may be healthy.

    Args:
        round: the round.
        since: the master's time of the first report.
        cause: as ``faults/standstill.py`` names it.
        message: what the ranks do, for operators.
        stacks: the file with the stacks of a rank, on its node.
    """

    round: int
    since: int
    cause: str
    message: str
    stacks: str = ""


@attrs.define(kw_only=True)
class NormState:
    """A step whose global gradient norm was abnormal.

    Args:
        round: the newest round that reported it.
        values: its norm, and the norm after it was computed again, if that was abnormal as well; None: not finite.
    """

    round: int
    values: tuple[float | None, ...]


@attrs.define(kw_only=True)
class SpikeVotes:
    """The nodes that found a spike of the loss, and how many of their ranks did; see ``spikes.py``.

    Args:
        round: the round.
        step: the step at which the first node found it.
        found: by node: its ranks that found it.
        reporting: by node: its ranks that report a loss.
        agreed: enough ranks found it.
    """

    round: int
    step: int
    found: dict[str, int] = attrs.field(factory=dict)
    reporting: dict[str, int] = attrs.field(factory=dict)
    agreed: bool = False


@attrs.frozen(kw_only=True)
class Skip:
    """Data that is left out."""

    step: int
    amount: int
    unit: str


@attrs.frozen(kw_only=True)
class NodeMemory:
    """What a node's keeper holds.

    Args:
        incarnation: of the agent that reported it.
        shards: the complete shards.
    """

    incarnation: str
    shards: tuple[HeldShard, ...]


@attrs.define(kw_only=True)
class SavingState:
    """A checkpoint whose shards are being written.

    Args:
        round: the round in which its shards were staged.
        step: its step.
        groups: number of its replica groups.
        files: the shards on storage, by replica group.
        nodes: the nodes that wrote them, in order.
        tries: how often its manifest was ordered.
        seconds: by node, how long staging and writing took.
    """

    round: int
    step: int
    groups: int
    files: dict[int, str] = attrs.field(factory=dict)
    nodes: list[str] = attrs.field(factory=list)
    tries: int = 0
    seconds: dict[str, float] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class StoredCheckpoint:
    """A complete checkpoint on storage that ftcore wrote.

    Args:
        step: its step.
        round: the round in which it was staged.
        where: its location.
    """

    step: int
    round: int
    where: str


@attrs.frozen(kw_only=True)
class FoundReplicas:
    """The replica groups that follow from what the ranks registered.

    Args:
        round: the round of the ranks.
        groups: the groups, in ascending order of their first rank.
    """

    round: int
    groups: tuple[tuple[int, ...], ...]


@attrs.frozen(kw_only=True)
class RollbackState:
    """A rollback: what earlier rounds saved after the step is not resumed from.

    Args:
        round: the first round after it.
        step: the step that it went back to.
    """

    round: int
    step: int


@attrs.define(kw_only=True)
class LoadState:
    """What the workers of the newest round load.

    Args:
        step: the step of the state.
        round: the round that saved it.
        source: ``memory`` or ``storage``.
        rounds: rounds in a row that began from it without completing a step.
    """

    step: int
    round: int
    source: str
    rounds: int = 1


STEPS_MIN = 5
"""Steps from which the time of a step is known well enough: samples do not begin and end with a step."""


@attrs.define(kw_only=True)
class SavePace:
    """What the interval between two saves to storage is chosen from.

    Args:
        cost_s: seconds that a save takes on the slowest node, staging and writing; None: none was measured.
        trained_s: seconds trained up to the newest interruption.
        since: the master's time since which the job trains; 0: it does not.
        failures: failures so far.
        steps: steps between samples of progress, those of older samples with less weight.
        seconds: the time that they took, weighted likewise.
        sample: step and time of the newest progress since the training began or an incident was opened; None: none.
        chosen: the newest choice; None: none.
    """

    cost_s: float | None = None
    trained_s: float = 0.0
    since: int = 0
    failures: int = 0
    steps: float = 0.0
    seconds: float = 0.0
    sample: tuple[int, int] | None = None
    chosen: IntervalChosen | None = None

    @property
    def step_s(self) -> float:
        """Seconds per step; 0: not known well enough."""
        return self.seconds / self.steps if self.steps >= STEPS_MIN else 0.0


@attrs.define(kw_only=True)
class SavedState:
    """State that ftcore saved: what a round can resume from.

    Args:
        memory: what the nodes' keepers hold, by node.
        saving: checkpoints that are being written, oldest first.
        stored: complete checkpoints on storage, in ascending order of steps.
        rollbacks: rollbacks, oldest first.
        load: what the newest round loads; None: nothing, or a step was completed after it.
        unusable: what rounds began from repeatedly without completing a step.
        refused: what ranks could not load, for example because it is damaged.
        failed: seq of the fact that a checkpoint could not be written; 0: none, or one was written since.
        replicas: the newest replica groups that ranks reported; None: none in this run.
        contradicted: seq of the first fact in this run that contradicts the policy file's replicas; 0: none does.
        pace: what the interval between two saves to storage is chosen from.
    """

    memory: dict[str, NodeMemory] = attrs.field(factory=dict)
    saving: list[SavingState] = attrs.field(factory=list)
    stored: list[StoredCheckpoint] = attrs.field(factory=list)
    rollbacks: list[RollbackState] = attrs.field(factory=list)
    load: LoadState | None = None
    unusable: list[LoadState] = attrs.field(factory=list)
    refused: list[LoadState] = attrs.field(factory=list)
    failed: int = 0
    replicas: FoundReplicas | None = None
    contradicted: int = 0
    pace: SavePace = attrs.field(factory=SavePace)

    def is_abandoned(self, step: int, round_: int) -> bool:
        """Whether what this round saved of this step was left behind by a rollback."""
        return any(round_ < back.round and step > back.step for back in self.rollbacks)

    def is_overtaken(self, step: int, round_: int) -> bool:
        """Whether a rollback left it behind, or a later round has saved after it had resumed from an earlier step."""
        later = any(each.round > round_ and each.step <= step for each in self.stored)
        return later or self.is_abandoned(step, round_)

    def is_unusable(self, step: int, round_: int, source: str) -> bool:
        """Whether rounds that began from it have failed repeatedly before their first step, or could not load it."""
        given_up = (*self.unusable, *self.refused)
        return any((each.step, each.round, each.source) == (step, round_, source) for each in given_up)


@attrs.define(kw_only=True)
class TrainingState:
    """How far the training has come.

    Args:
        step: the newest completed step; None if none is known in this run.
        step_absolute: that step counts from the start of the training, not of the round.
        step_round: the round in which it was completed.
        reports_steps: workers of this run have reported a step.
        checkpoints: steps of committed checkpoints of the current lineage, in ascending order.
        committed: time of the newest committed checkpoint of this run; 0: none.
        resume_step: the step that a rollback goes back to, or the newest one committed since, until its plan succeeds.
        skips: data that the current lineage leaves out.
        lr_factor: factor for the learning rate that the script sets, as last lowered; see ``rate.py``.
        lr_policy: the policy that lowered it last; empty: none did.
        tolerated: steps whose abnormal values a policy accepts, newest last.
        norms: steps with an abnormal global gradient norm, newest last.
        curves: the newest outlier of a figure of the whole job by its kind: round, step and the node that reported it.
        spikes: by kind, the newest spike of the loss that ranks found.
        reporting: the newest round in which it is known how many ranks report a loss, and their number.
        nan: the loss is NaN or infinite; None: it is finite, as far as is known.
        standstill: no step is completed, and an alert was raised; None: steps are completed.
        longest_gap_s: the longest time without a step, of those with an alert, after which the job went on by itself.
        ceilings: how often in this run the absence of steps was taken for a hang because it lasted too long.
        saved: state that ftcore saved.
    """

    step: int | None = None
    step_absolute: bool = False
    step_round: int = 0
    reports_steps: bool = False
    checkpoints: list[int] = attrs.field(factory=list)
    committed: int = 0
    resume_step: int | None = None
    skips: list[Skip] = attrs.field(factory=list)
    lr_factor: float = 1.0
    lr_policy: str = ""
    tolerated: list[int] = attrs.field(factory=list)
    norms: dict[int, NormState] = attrs.field(factory=dict)
    curves: dict[str, tuple[int, int | None, str]] = attrs.field(factory=dict)
    spikes: dict[str, SpikeVotes] = attrs.field(factory=dict)
    reporting: tuple[int, int] = (0, 0)
    nan: NanState | None = None
    standstill: Standstill | None = None
    longest_gap_s: float = 0.0
    ceilings: int = 0
    saved: SavedState = attrs.field(factory=SavedState)
