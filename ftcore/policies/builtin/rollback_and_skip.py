"""``rollback_and_skip``: resume from a checkpoint before a loss spike, and skip the data that led to it.

The options ``back`` and ``skip`` cover what PaLM did (about 100 steps back, 200 to 500 batches skipped: Chowdhery et
al., 2022, section 5.1) and what Falcon did (the latest checkpoint before the spike, a billion tokens skipped:
Almazrouei et al., 2023). If a spike recurs after a rollback, the next rollback goes further back and skips more.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.events.policy import Terms
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.options import OptionRule, Options, number, says, span, takes_nothing
from ftcore.policies.rollback import (
    BEFORE_RULE,
    RollbackOptions,
    goes_back_in_place,
    newest_kept,
    nothing_kept,
    nothing_to_undo,
)
from ftcore.policies.situation import in_a_row, script_declares
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.states.revisions import BY_TOKENS, follows
from ftcore.wording import format_duration


class RollbackAndSkipOptions(RollbackOptions):
    """Options of ``rollback_and_skip``."""

    skip: Annotated[int, number("Amount of data to skip; 0: none.")] = 200
    skip_unit: Annotated[Literal["batches", "tokens"], says("Unit of `skip`.")] = "batches"
    again: Annotated[
        float, span("The n-th rollback within this time goes n times as far back and skips n times as much.")
    ] = 3600.0
    max_rollbacks: Annotated[int, number("Rollbacks allowed in `window`.", minimum=1, maximum=1000)] = 5
    window: Annotated[float, span("The time over which rollbacks are counted.", minimum=1)] = 86400.0

    rules: ClassVar[tuple[OptionRule, ...]] = (
        BEFORE_RULE,
        OptionRule(
            options=("skip_unit", "skip"),
            broken=lambda o: o.skip == 0,
            text="skip_unit has no effect with skip: 0",
            given=("skip_unit",),
        ),
        takes_nothing("on", "nothing in `on`"),
    )


@declares(Trait.COSTS_A_ROUND, Trait.ROLLS_BACK, Trait.SKIPS, budget="max_rollbacks")
class RollbackAndSkip:
    """Go back before a spike and skip its data."""

    name: ClassVar[str] = "rollback_and_skip"
    doc: ClassVar[str] = "Resume from a checkpoint before the loss became abnormal, and skip data from there on."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a numeric fault whose kind is in `on`, if an earlier checkpoint is kept",
        "goes back `before` steps, or to the latest checkpoint before the fault, as `back` says; the n-th rollback in "
        "`again` goes n times as far back and skips n times as much",
        "passes if steps are not counted from the start of the training, or the script cannot skip data; a script that "
        "registered its data (`step.batch`) skips without code of its own, by tokens if it says how many a step has "
        "(`steps(tokens=...)`)",
        "keeps the processes if the script reports the ability `retry` and skips no data by code of its own: they load "
        "the checkpoint and go on",
        "passes when `max_rollbacks` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.ROLLBACK,)
    options: ClassVar[type[Options]] = RollbackAndSkipOptions

    def considers(self, incident: IncidentState, job: JobState, options: RollbackAndSkipOptions) -> Verdict:
        """Take a fault that a rollback to an earlier checkpoint can undo."""
        step = incident.fault.step
        why = nothing_to_undo(incident, job, options.on)
        if why or step is None:
            return Pass(reason=why)
        if options.skip > 0 and not job.can(Ability.SKIP):
            return Pass(reason="cannot skip data: the job does not declare `skip`; to go back only, set `skip: 0`")
        if options.skip > 0 and options.skip_unit != "batches" and not _counts_tokens(job):
            how = "; or pass the tokens of a step to `steps(tokens=...)`" if follows(job, BY_TOKENS) else ""
            return Pass(reason=f"registered data is skipped by batches; expected `skip_unit: batches`{how}")
        why = spent(job, self.name, options.max_rollbacks, options.window, "rollbacks")
        if why:
            return Pass(reason=why)
        times = max(attempts(job, self.name, options.again) + 1, in_a_row(incident, job))
        latest = step - (options.before * times if options.back == "steps" else 0)
        target = newest_kept(job, latest)
        if target is None:
            return Pass(reason=nothing_kept(job, latest))
        skip = _amount(options, times, step - target)
        attempt = attempts(job, self.name, options.window) + 1
        parks = _stays(job, skip)
        wider = f", {times} times as wide as the first" if times > 1 else ""
        skipped = f" and skips {skip} {options.skip_unit}" if skip else ""
        where = " in the same processes" if parks else ""
        return Take(
            plan=PlanKind.RESTART,
            reason=f"goes back from step {step} to {target}{where}{skipped}{wider}; "
            f"{attempt} of {options.max_rollbacks} in {format_duration(options.window)}",
            grace_s=options.grace,
            deadline_s=options.deadline,
            attempt=attempt,
            terms=Terms(
                rollback_to=target,
                skip=skip,
                skip_unit=options.skip_unit,
                survivors="park" if parks else "stop",
            ),
        )


def _stays(job: JobState, skip: int) -> bool:
    """Whether the processes go back as they are; a script that skips by itself reads what to skip at its start."""
    return goes_back_in_place(job) and not (skip and script_declares(job, Ability.SKIP))


def _counts_tokens(job: JobState) -> bool:
    """Whether data can be skipped by tokens."""
    return script_declares(job, Ability.SKIP) or (job.can(Ability.TOKENS) and follows(job, BY_TOKENS))


def _amount(options: RollbackAndSkipOptions, times: int, back: int) -> int:
    """How much to skip: ``skip`` times the rollback's number, but at least the batches up to the fault."""
    amount = int(options.skip) * times
    return max(amount, back + 1) if amount and options.skip_unit == "batches" else amount
