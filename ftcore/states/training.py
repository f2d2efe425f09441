"""How far the training has come. Data alone."""

import attrs


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


@attrs.frozen(kw_only=True)
class Skip:
    """Data that is left out."""

    step: int
    amount: int
    unit: str


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
        resume_step: the step that a rollback goes back to, until a step is completed after it.
        skips: data that the current lineage leaves out.
        tolerated: steps whose fault a policy tolerated, newest last.
        curves: the newest outlier of a figure of the whole job by its kind: round, step and the node that reported it.
        nan: the loss is NaN or infinite; None: it is finite, as far as is known.
        standstill: no step is completed, and an alert was raised; None: steps are completed.
        longest_gap_s: the longest time without a step, of those with an alert, after which the job went on by itself.
        ceilings: how often in this run the absence of steps was taken for a hang because it lasted too long.
    """

    step: int | None = None
    step_absolute: bool = False
    step_round: int = 0
    reports_steps: bool = False
    checkpoints: list[int] = attrs.field(factory=list)
    committed: int = 0
    resume_step: int | None = None
    skips: list[Skip] = attrs.field(factory=list)
    tolerated: list[int] = attrs.field(factory=list)
    curves: dict[str, tuple[int, int | None, str]] = attrs.field(factory=dict)
    nan: NanState | None = None
    standstill: Standstill | None = None
    longest_gap_s: float = 0.0
    ceilings: int = 0
