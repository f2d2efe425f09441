"""``lower_learning_rate``: resume from a checkpoint before a loss spike, with a lower learning rate from there on.

OPT-175B lowered its learning rate by hand and restarted from an earlier checkpoint when the loss diverged (Zhang et
al., 2022, section 2.5). Usually the entry stands below ``rollback_and_skip``: if skipping data has not helped, the rate
is the next thing to change. All later rounds of the job keep the lower rate, while the entry is in its chain.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import OptionRule, Options, number, span, takes_nothing
from ftcore.policies.rollback import (
    BEFORE_RULE,
    RollbackOptions,
    goes_back_in_place,
    newest_kept,
    nothing_kept,
    nothing_to_undo,
)
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.states.rate import lr_factor
from ftcore.wording import format_duration


class LowerLearningRateOptions(RollbackOptions):
    """Options of ``lower_learning_rate``."""

    factor: Annotated[float, number("Factor for the learning rate, each time.", minimum=0.01, maximum=0.99)] = 0.5
    least: Annotated[
        float, number("Smallest learning rate, as a share of the script's own.", minimum=0.0001, maximum=0.99)
    ] = 0.1
    max_lowerings: Annotated[int, number("Lowerings allowed in `window`.", minimum=1, maximum=1000)] = 3
    window: Annotated[float, span("The time over which lowerings are counted.", minimum=1)] = 86400.0

    rules: ClassVar[tuple[OptionRule, ...]] = (
        BEFORE_RULE,
        OptionRule(
            options=("factor", "least"),
            broken=lambda o: o.factor < o.least,
            text="factor ({factor}) is below least ({least}): the rate is never lowered",
        ),
        takes_nothing("on", "nothing in `on`"),
    )


@declares(Trait.COSTS_A_ROUND, Trait.ROLLS_BACK, budget="max_lowerings")
class LowerLearningRate:
    """Go back before a spike and go on with a lower learning rate."""

    name: ClassVar[str] = "lower_learning_rate"
    doc: ClassVar[str] = "Resume from a checkpoint before the loss became abnormal, with a lower learning rate."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a numeric fault whose kind is in `on`, if an earlier checkpoint is kept",
        "goes back `before` steps, or to the latest checkpoint before the fault, as `back` says, and multiplies the "
        "learning rate of all optimizers by `factor`; all later rounds have that rate, while the entry is in the chain",
        "passes if the rate would be below `least` times the script's own",
        "passes if steps are not counted from the start of the training",
        "keeps the processes if the script reports the ability `retry`: they load the checkpoint and go on",
        "passes when `max_lowerings` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.ROLLBACK,)
    options: ClassVar[type[Options]] = LowerLearningRateOptions

    def considers(self, incident: IncidentState, job: JobState, options: LowerLearningRateOptions) -> Verdict:
        """Take a fault that may come of a learning rate that is too high."""
        step = incident.fault.step
        why = nothing_to_undo(incident, job, options.on)
        if why or step is None:
            return Pass(reason=why)
        why = spent(job, self.name, options.max_lowerings, options.window, "lowerings")
        if why:
            return Pass(reason=why)
        now = lr_factor(job)
        after = now * options.factor
        if after < options.least:
            return Pass(reason=f"the learning rate is {now:.4g} of the script's own; `least` is {options.least:g}")
        latest = step - (options.before if options.back == "steps" else 0)
        target = newest_kept(job, latest)
        if target is None:
            return Pass(reason=nothing_kept(job, latest))
        attempt = attempts(job, self.name, options.window) + 1
        parks = goes_back_in_place(job)
        where = " in the same processes" if parks else ""
        return Take(
            plan=PlanKind.RESTART,
            reason=f"goes back from step {step} to {target}{where} with {after:.4g} of the script's learning rate; "
            f"{attempt} of {options.max_lowerings} in {format_duration(options.window)}",
            grace_s=options.grace,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(
                rollback_to=target,
                lr_factor=options.factor,
                survivors="park" if parks else "stop",
            ),
        )
