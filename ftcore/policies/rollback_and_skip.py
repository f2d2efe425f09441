"""``rollback_and_skip``: resume from a checkpoint before the loss went wrong, and leave out the data that led there.

What PaLM did (about 100 steps back, 200 to 500 batches left out: Chowdhery et al., 2022, section 5.1) and Falcon did
(the latest checkpoint before the spike, a billion tokens left out: Almazrouei et al., 2023) are two settings of
``back`` and ``skip``. A spike that comes again after a rollback is answered by a wider one.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import attempts, spent
from ftcore.policies.situation import class_of, in_a_row, kind_of
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


@declares(Trait.COSTS_A_ROUND, Trait.ROLLS_BACK, budget="max_rollbacks")
class RollbackAndSkip:
    """Go back before a spike and skip its data."""

    name: ClassVar[str] = "rollback_and_skip"
    doc: ClassVar[str] = "Resume from a checkpoint before the loss went wrong, and leave out data from there on."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a numeric fault whose kind is in `on`, if a checkpoint from before it is kept",
        "goes back `before` steps, or to the latest checkpoint before it, as `back` says; n times as far, and leaves "
        "out n times as much, for the n-th time in `again`",
        "passes where steps are not counted from the start of the training, or the script cannot skip what it should",
        "passes when `max_rollbacks` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.ROLLBACK,)
    options: ClassVar[Mapping[str, Option]] = {
        "on": Option(
            default=("loss-spike", "loss-nan", "loss-divergence", "norm-spike", "norm-nan", "norm-divergence"),
            kind="texts",
            doc="Kinds of observations that it deals with.",
        ),
        "back": Option(
            default="steps",
            kind="choice",
            choices=("steps", "latest"),
            doc="Back by `before` steps, or to the latest checkpoint before the fault.",
        ),
        "before": Option(default=100, kind="int", doc="Steps to go back at least, for `back: steps`."),
        "skip": Option(default=200, kind="int", doc="How much of the data is left out; 0: none."),
        "skip_unit": Option(default="batches", kind="choice", choices=("batches", "tokens"), doc="What `skip` counts."),
        "again": Option(default=3600, kind="duration", doc="Time in which another rollback is a wider one."),
        "max_rollbacks": Option(default=5, kind="int", minimum=1, maximum=1000, doc="Rollbacks allowed in `window`."),
        "window": Option(default=86400, kind="duration", minimum=1, doc="The time over which rollbacks are counted."),
        "grace": Option(default=10, kind="duration", doc="Time between TERM and KILL of a worker."),
        "deadline": Option(
            default=1800, kind="duration", doc="Time from the new start to its first completed step; 0: no limit."
        ),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take what a checkpoint from before it can undo."""
        if class_of(incident) is not FaultClass.NUMERIC or kind_of(incident, job) not in options["on"]:
            return Pass(reason=f"not one of: {', '.join(options['on'])}")
        step = incident.fault.step
        if step is None or not incident.fault.absolute:
            return Pass(reason="at which step of the training it came is not known")
        if options["skip"] > 0 and not job.can(Ability.SKIP):
            return Pass(reason="data is to be left out, and the script did not declare `skip`; or set `skip: 0`")
        why = spent(job, self.name, options["max_rollbacks"], options["window"], "rollbacks")
        if why:
            return Pass(reason=why)
        times = max(attempts(job, self.name, options["again"]) + 1, in_a_row(incident, job))
        latest = step - (options["before"] * times if options["back"] == "steps" else 0)
        target = max((kept for kept in job.checkpoints if kept <= latest), default=None)
        if target is None:
            return Pass(reason=_nothing_kept(job, latest))
        skip = _amount(options, times, step - target)
        attempt = attempts(job, self.name, options["window"]) + 1
        wider = f", {times} times as wide as the first" if times > 1 else ""
        left_out = f" and leaves out {skip} {options['skip_unit']}" if skip else ""
        return Take(
            plan=PlanKind.RESTART,
            reason=f"goes back from step {step} to {target}{left_out}{wider}; "
            f"{attempt} of {options['max_rollbacks']} in {format_duration(options['window'])}",
            grace_s=options["grace"],
            deadline_s=options["deadline"],
            attempt=attempt,
            terms=Terms(rollback_to=target, skip=skip, skip_unit=options["skip_unit"]),
        )


def _amount(options: Mapping[str, Any], times: int, back: int) -> int:
    """What is left out: as told, but never so little that the batches of the fault itself are read again."""
    amount = int(options["skip"]) * times
    return max(amount, back + 1) if amount and options["skip_unit"] == "batches" else amount


def _nothing_kept(job: JobState, latest: int) -> str:
    if not job.checkpoints:
        return "no checkpoint is known to be kept"
    return (
        f"no checkpoint at or before step {latest} is kept, the oldest is of step {min(job.checkpoints)}: keep more of "
        "them, or go back less"
    )
