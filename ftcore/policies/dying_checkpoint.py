"""``dying_checkpoint`` (MindIO's TTP): save the last completed step before anything is stopped.

After a fault the ranks that live hold, between them, a whole replica of the state: they check among themselves that it
is complete and of one step, and save it once. What follows (a restart, a replacement, the end) is the rest of the
chain's business, so the plan never ends an incident; it only makes it cheap. Before a stop that somebody planned no
replicas are needed, as nobody is missing.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.commands import SaveCheckpoint
from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.ids import Round
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import spent
from ftcore.policies.options import Options, number, says, span
from ftcore.policies.situation import anyone_lives, asked_by, class_of, everyone_lives, gone, living_ranks
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import plural

WARNINGS = (FaultClass.SIGNAL_PREEMPTION, FaultClass.GPU_HW, FaultClass.NODE_LOST)
"""Classes of warnings that say that ranks are about to be lost."""


class DyingCheckpointOptions(Options):
    """What ``dying_checkpoint`` may be told."""

    before: Annotated[
        tuple[Literal["drain", "evict", "stop"], ...], says("Requests before which a checkpoint is saved.")
    ] = ("drain", "evict")
    on_hang: Annotated[
        bool, says("Try it though ranks stand still; one that cannot be freed costs the whole `deadline`.")
    ] = False
    deadline: Annotated[float, span("Time for the save; then the chain goes on without it.", minimum=1)] = 300.0
    max_saves: Annotated[int, number("Saves allowed in `window`.", minimum=1, maximum=1000)] = 60
    window: Annotated[float, span("The time over which saves are counted.", minimum=1)] = 3600.0


@declares(Trait.CONTINUES, budget="max_saves")
class DyingCheckpoint:
    """Save what the survivors hold, then let the chain go on."""

    name: ClassVar[str] = "dying_checkpoint"
    doc: ClassVar[str] = "Have the ranks that live save the last completed step, then go on with the chain."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault that leaves living workers, if every part of the state is held twice, or nobody is missing",
        "takes a warning that a node is about to go",
        "takes a request named in `before` (the chain goes on when it is saved), and a request for a checkpoint",
        "passes a numeric fault: a broken state is not worth saving",
        "passes a hang, unless `on_hang`",
        "passes if this incident was saved already, or no step was completed since the newest checkpoint",
        "passes when `max_saves` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning", "drain", "evict", "stop", "checkpoint")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.SAVE,)
    options: ClassVar[type[Options]] = DyingCheckpointOptions

    def considers(self, incident: IncidentState, job: JobState, options: DyingCheckpointOptions) -> Verdict:
        """Take what can be saved and is worth it."""
        trouble = incident.kind in ("fault", "warning")
        wish = "" if trouble else incident.fault.detail
        if incident.kind == "warning" and incident.fault.cls not in WARNINGS:
            return Pass(reason=f"nothing is about to be lost: {incident.fault.cls}")
        if not trouble and wish != "checkpoint" and wish not in options.before:
            return Pass(reason=f"nothing is saved before: {wish or incident.fault.cls}")
        if class_of(incident) is FaultClass.HANG and not options.on_hang:
            return Pass(reason="ranks that stand still save nothing (`on_hang` is off)")
        why_not = _cannot(incident, job) or ("" if wish == "checkpoint" else _need_not(incident, job))
        if not why_not and wish != "checkpoint":
            why_not = spent(job, self.name, options.max_saves, options.window, "saves")
        if why_not:
            return Pass(reason=why_not)
        assert job.world is not None
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=_reason(incident, job, wish),
            grace_s=0.0,
            deadline_s=options.deadline,
            terms=Terms(
                command=SaveCheckpoint(round=Round(job.world.round), ranks=_savers(job)),
                then="resolve" if wish == "checkpoint" else "continue",
            ),
        )


def _cannot(incident: IncidentState, job: JobState) -> str:
    if not anyone_lives(job):
        return "no worker lives that could save"
    if class_of(incident) is FaultClass.NUMERIC:
        return "a state that went wrong is not worth saving"
    if not everyone_lives(job) and not job.can(Ability.REPLICAS):
        return "ranks are missing, and nothing declared that every part of their state is held twice (`replicas`)"
    if len(_savers(job)) < len(job.declared.groups):
        return "of some replica group no rank lives: its state is lost"
    return ""


def _savers(job: JobState) -> tuple[int, ...]:
    """The first living rank of each replica group; nobody is named where the groups were not told."""
    groups = job.declared.groups
    if not groups:
        return ()
    alive = living_ranks(job)
    return tuple(
        rank for group in groups if (rank := next((rank for rank in group if rank in alive), None)) is not None
    )


def _need_not(incident: IncidentState, job: JobState) -> str:
    if incident.saved:
        return "the state was saved in this incident already"
    if job.step is None:
        return "no step was completed yet"
    if job.step_absolute and job.checkpoints and job.checkpoints[-1] >= job.step:
        return f"the checkpoint of step {job.checkpoints[-1]} holds all there is"
    return ""


def _reason(incident: IncidentState, job: JobState, wish: str) -> str:
    step = f"step {job.step}" if job.step is not None else "the state"
    if wish:
        who = f"{asked_by(incident, job)}; " if incident.kind == "request" else ""
        return f"{who}saves {step}" + ("" if wish == "checkpoint" else f" before: {wish}")
    lost = len(gone(incident, job))
    away = f"{plural(lost, 'node')} {'is' if lost == 1 else 'are'} gone" if lost else ""
    missing = away or ("all workers live" if everyone_lives(job) else "workers ended")
    return f"{missing}; the ranks that live save {step}"
