"""``dying_checkpoint`` (MindIO's TTP): save the last completed step before workers are stopped.

After a fault, the live ranks together hold a whole replica of the state. They check among themselves that it is
complete and of the same step, and save it once. The plan does not resolve the incident: the rest of the chain decides
on a restart, a replacement or the end of the job. Before a requested stop all ranks are alive: no replicas are needed.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.commands import SaveCheckpoint
from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import FaultClass
from ftcore.ids import SECOND, Round
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import spent
from ftcore.policies.options import Options, number, says, span
from ftcore.policies.situation import (
    all_workers_alive,
    any_worker_alive,
    asked_by,
    class_of,
    hands_over,
    have_left,
    living_ranks,
    lost_nodes,
    registers_state,
)
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.states.replicas import Groups, contradiction, declared_groups, found_groups
from ftcore.states.revisions import ONE_BOUNDARY, follows
from ftcore.wording import plural

WARNINGS = (FaultClass.SIGNAL_PREEMPTION, FaultClass.GPU_HW, FaultClass.NODE_LOST)
"""Classes of warnings after which ranks may be lost soon."""


FRESH_S = 1.0
"""Age in seconds up to which the newest checkpoint has the last step: the log learns of steps at intervals only."""


class DyingCheckpointOptions(Options):
    """Options of ``dying_checkpoint``."""

    before: Annotated[
        tuple[Literal["drain", "evict", "stop"], ...], says("Requests before which a checkpoint is saved.")
    ] = ("drain", "evict")
    on_hang: Annotated[
        bool, says("Try to save after a hang as well; a rank that stays blocked costs the whole `deadline`.")
    ] = False
    deadline: Annotated[float, span("Time for the save; then the chain continues without it.", minimum=1)] = 300.0
    max_saves: Annotated[int, number("Saves allowed in `window`.", minimum=1, maximum=1000)] = 60
    window: Annotated[float, span("The time over which saves are counted.", minimum=1)] = 3600.0


@declares(Trait.CONTINUES, budget="max_saves")
class DyingCheckpoint:
    """Save the state of the live ranks, then continue with the chain."""

    name: ClassVar[str] = "dying_checkpoint"
    doc: ClassVar[str] = "Have the live ranks save the last completed step, then continue with the chain."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault that leaves live workers, if no rank is missing, two ranks hold every part of the state, or the "
        "script registered its state",
        "takes a warning that a node is about to be lost",
        "takes a request named in `before` (the chain continues after the save), and a request for a checkpoint",
        "passes if ranks are missing and the script saves only together with all ranks (`checkpoint`)",
        "passes a numeric fault: the state is not worth saving",
        "passes a hang, unless `on_hang`",
        "passes a request to drain or to evict if the script registered its state: it is saved at the step boundary "
        "where the workers stop",
        "passes if the state was already saved in this incident, or no step was completed since the newest checkpoint",
        "passes when `max_saves` in `window` are spent",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning", "drain", "evict", "stop", "checkpoint")
    needs: ClassVar[tuple[Ability, ...]] = (Ability.SAVE,)
    options: ClassVar[type[Options]] = DyingCheckpointOptions

    def considers(self, incident: IncidentState, job: JobState, options: DyingCheckpointOptions) -> Verdict:
        """Take the incident if the state can be saved and is worth saving."""
        involuntary = incident.kind in ("fault", "warning")
        request = "" if involuntary else incident.fault.detail
        if incident.kind == "warning" and incident.fault.cls not in WARNINGS:
            return Pass(reason=f"no rank is about to be lost: {incident.fault.cls}")
        if not involuntary and request != "checkpoint" and request not in options.before:
            return Pass(reason=f"no save before {request or incident.fault.cls}: not in `before`")
        if request in ("drain", "evict") and hands_over(job):
            return Pass(reason="the script's state is saved at the step boundary where the workers are stopped")
        if class_of(incident) is FaultClass.HANG and not options.on_hang:
            return Pass(reason="blocked ranks cannot save (`on_hang` is off)")
        why_not = _cannot_save(incident, job) or ("" if request == "checkpoint" else _need_not_save(incident, job))
        if not why_not and request != "checkpoint":
            why_not = spent(job, self.name, options.max_saves, options.window, "saves")
        if why_not:
            return Pass(reason=why_not)
        assert job.rounds.world is not None
        return Take(
            plan=PlanKind.IN_PLACE,
            reason=_reason(incident, job, request),
            grace_s=0.0,
            deadline_s=options.deadline,
            terms=Terms(
                command=SaveCheckpoint(round=Round(job.rounds.world.round), ranks=_savers(job)),
                then="resolve" if request == "checkpoint" else "continue",
            ),
        )


def _cannot_save(incident: IncidentState, job: JobState) -> str:
    if not any_worker_alive(job):
        return "no live worker could save"
    if class_of(incident) is FaultClass.NUMERIC:
        return "after a numeric fault the state is not worth saving"
    if registers_state(job):
        return ""  # whether the survivors hold one shard of each replica group shows when they have staged
    if not all_workers_alive(job) and not job.can(Ability.SAVE):
        return "ranks are missing, and the script can save only together with all ranks"
    if not all_workers_alive(job) and not job.can(Ability.REPLICAS):
        return "ranks are missing, and the job does not declare that other ranks hold the same state (`replicas`)"
    if len(_savers(job)) < len(_groups(job)):
        return "a replica group has no live rank: its state is lost"
    return ""


def _savers(job: JobState) -> tuple[int, ...]:
    """The first live rank of each replica group; empty if the job declares no groups."""
    groups = _groups(job)
    if not groups:
        return ()
    alive = living_ranks(job)
    return tuple(
        rank for group in groups if (rank := next((rank for rank in group if rank in alive), None)) is not None
    )


def _groups(job: JobState) -> Groups:
    """The replica groups that the job declares; what its ranks registered counts if that is different."""
    declared, world = job.policy.declared, job.rounds.world
    found = found_groups(job)
    if found and contradiction(job, found):
        return found
    if declared.replicas == "layout" and world is not None:
        return declared_groups(declared, world.size)
    return declared.groups


def _need_not_save(incident: IncidentState, job: JobState) -> str:
    if incident.saved:
        return "the state was already saved in this incident"
    if job.training.step is None:
        return "no step was completed yet"
    saved = job.training.checkpoints
    fresh = not follows(job, ONE_BOUNDARY) or job.time - job.training.committed <= FRESH_S * SECOND
    if job.training.step_absolute and saved and saved[-1] >= job.training.step and fresh:
        return f"no step was completed since the checkpoint of step {job.training.checkpoints[-1]}"
    return ""


def _reason(incident: IncidentState, job: JobState, request: str) -> str:
    known = job.training.step is not None and not follows(job, ONE_BOUNDARY)  # the log is behind the workers' steps
    step = f"step {job.training.step}" if known else "the state" if job.training.step is None else "the last step"
    if request:
        requester = f"{asked_by(incident, job)}; " if incident.kind == "request" else ""
        return f"{requester}saves {step}" + ("" if request == "checkpoint" else f" before: {request}")
    count = len(lost_nodes(incident, job))
    lost = f"{plural(count, 'node')} {'is' if count == 1 else 'are'} lost" if count else ""
    left = "the ranks have left their step" if have_left(job) else "all workers are alive"
    cause = lost or (left if all_workers_alive(job) else "workers ended")
    return f"{cause}; the live ranks save {step}"
