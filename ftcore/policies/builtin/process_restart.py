"""``process_restart``: stop all workers and start them again on the available nodes.

The workers load their last checkpoint. The first attempt starts at once. Until a step is completed, each further one
waits twice as long as the one before, with a reproducible jitter.

A restart repairs a process, not a machine. A fault of a node is passed to an entry below that can take the node out. If
there is none, the policy restarts all the same, and its reason says what was missing.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.events.policy import ChainEntry, Terms
from ftcore.policies.abilities import lacking
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import RoundOptions, attempts, round_terms, spent
from ftcore.policies.options import OptionRule, Options, never_reached, number, says, span
from ftcore.policies.replacement import judge
from ftcore.policies.situation import (
    class_of,
    crash_loop,
    culprit,
    entries_below,
    facts,
    interrupted,
    is_member,
    largest_world,
    lost_nodes,
    members,
    root_report,
    script_declares,
    stays_at_fault,
    unfit,
    unreadable,
    unreadable_file,
)
from ftcore.policies.traits import Trait, declares, having, limit, options_of
from ftcore.states.model import IncidentState, JobState
from ftcore.states.resume import remedy_of
from ftcore.states.revisions import NO_NODE_AT_FAULT, PEER_NOT_HANG, follows
from ftcore.wording import format_duration, listed


class ProcessRestartOptions(RoundOptions):
    """Options of ``process_restart``."""

    max_restarts: Annotated[int, number("Restarts allowed in `window`.", maximum=1000)] = 20
    window: Annotated[float, span("The time over which restarts are counted.", minimum=1)] = 3600.0
    same_fault: Annotated[
        int,
        number("Pass a fault of the script or the data after this many times in a row at the same step.", minimum=1),
    ] = 2
    patience: Annotated[
        float,
        span(
            "How long to wait for a lost node to come back. 0: if `shrink` is below and enough nodes are left for it, "
            "do not wait, or wait for the job's join window if the platform can launch nodes; otherwise use the "
            "job's time constants."
        ),
    ] = 0.0
    check: Annotated[
        Literal["always", "suspect", "never"],
        says(
            "Check the health of nodes before the restart, unless `job: health` disables checks. `suspect`: after a "
            "fault that may be a node's, check that node, or all nodes if none is named."
        ),
    ] = "suspect"

    rules: ClassVar[tuple[OptionRule, ...]] = (never_reached("same_fault", "max_restarts", beyond=1),)


@declares(Trait.COSTS_A_ROUND, Trait.RESTARTS, budget="max_restarts")
class ProcessRestart:
    """Restart the workers in place, within a budget."""

    name: ClassVar[str] = "process_restart"
    doc: ClassVar[str] = (
        "Stop all workers and start them again on the available nodes; they resume from their checkpoint."
    )
    conditions: ClassVar[tuple[str, ...]] = (
        "takes any fault, and any other incident after its plan stopped the workers and failed",
        "passes a fault of a node to `pod_replacement` or `shrink` below it, if that can take the node out",
        "passes the loss of a node to `shrink` below it, if enough nodes are left, the platform cannot launch another, "
        "and `patience` is 0",
        "passes a fault of the script or the data that occurred `same_fault` times in a row at the same step",
        "goes back to the checkpoint before the newest one, if the newest could not be read `same_fault` times in a "
        "row, the script reported several, and it declares `rollback`",
        "passes if its own restart led to no completed step and the same fault occurred again",
        "passes when `max_restarts` in `window` are spent",
        "passes requests",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "stop", "interrupted")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = ProcessRestartOptions

    def considers(self, incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> Verdict:
        """Take faults within the budget; pass requests and repeated faults of the script."""
        if incident.kind != "fault" and not interrupted(incident, job):
            request = incident.fault.detail
            return Pass(reason=f"asked to {request if request and request != 'stop' else 'end'}, not to restart")
        older = _older_checkpoint(incident, job, options)
        state = remedy_of(job)
        why_not = "" if older is not None else _no_remedy(incident, job, options)
        why = ("" if state is not None else why_not) or spent(
            job, self.name, options.max_restarts, options.window, "restarts"
        )
        if why:
            return Pass(reason=why)
        if incident.kind == "fault":
            better, remark = _better_entry(incident, job, options, self.name)
        else:
            better, remark = "", f"; restarts the workers after the failed plan of {incident.tried[-1]}"
        if better:
            return Pass(reason=better)
        if incident.fault.detail == "health-check" and is_member(job, culprit(incident)):
            return Pass(reason=f"{culprit(incident)} failed its health check and must not train{remark}")
        attempt = attempts(job, self.name, options.window) + 1
        if older is not None:
            remark = f"; goes back to the checkpoint of step {older}: {unreadable_file(incident, job)} cannot be read"
        elif state is not None and why_not:
            remark = (
                f"; {why_not}, but the state that the workers loaded may be the cause: resumes from step {state.step}"
            )
        patience_s = _patience_s(incident, job, options, self.name)
        waits = _waits(incident, job, patience_s)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"restart {attempt} of {options.max_restarts} in {format_duration(options.window)}{remark}{waits}",
            attempt=attempt,
            **round_terms(job, incident, options),
            terms=Terms(patience_s=patience_s, check=_check(incident, job, options), rollback_to=older),
        )


def _older_checkpoint(incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> int | None:
    """The step to go back to if the newest checkpoint cannot be read.

    None if a plain restart comes first, no older checkpoint is kept, or the script does not support rollback.
    """
    again = unreadable(incident) and job.evidence.repeat.count >= options.same_fault
    if not again or incident.kind != "fault" or not script_declares(job, Ability.ROLLBACK):
        return None  # of a script that registered its state, `remedy_of` chooses an older one
    if len(job.training.checkpoints) < 2:
        return None
    return job.training.checkpoints[-2]


def _no_remedy(incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> str:
    if incident.kind != "fault":
        return "" if ProcessRestart.name not in incident.tried else "its own restart did not start the workers"
    cls = class_of(incident)
    known = facts(incident)
    recurs = known.repeats or known.at_fault == "data"
    if unreadable(incident) and job.evidence.repeat.count >= options.same_fault:
        times = f"{job.evidence.repeat.count} times in a row"
        return f"{unreadable_file(incident, job)} could not be read {times}: a restart is no remedy"
    if recurs and job.evidence.repeat.count >= options.same_fault:
        return f"{cls} came {job.evidence.repeat.count} times in a row at {_place(incident)}: a restart is no remedy"
    if ProcessRestart.name in incident.tried and job.evidence.repeat.count >= options.same_fault:
        return "its own restart led to no completed step, and the same fault occurred again"
    return ""


def _place(incident: IncidentState) -> str:
    step = incident.fault.step
    return "the start, before any step" if step is None else f"step {step}"


def _better_entry(incident: IncidentState, job: JobState, options: ProcessRestartOptions, own: str) -> tuple[str, str]:
    """The reason to pass if an entry below can take out a node at fault; otherwise a remark why none can."""
    below, remark = entries_below(job, own, incident), ""
    for replacement in having(below, Trait.REPLACES):
        found = judge(incident, job, replacement.policy, options_of(replacement))
        nodes = (*found.lost, *found.unfit)
        lack = lacking((Ability.REPLACE,), job)
        if nodes and not lack:
            return f"{listed(nodes)}: a node is at fault; {replacement.policy} below replaces it", ""
        if nodes:
            remark = f"; a node is at fault ({listed(nodes)}), but the platform cannot launch another one"
        elif found.why_not and (lost_nodes(incident, job) or unfit(incident, job, options_of(replacement))):
            remark = f"; no replacement: {found.why_not}"
    shrink = next(iter(having(below, Trait.SHRINKS)), None)
    if shrink is None:
        return "", remark
    out = unfit(incident, job, options_of(shrink)) or crash_loop(incident, job, options_of(shrink))
    enough = max(1, options_of(shrink).min_nodes)
    if out and largest_world(job, out) >= enough:
        return f"{listed(out)} is at fault; {shrink.policy} below leaves it out", ""
    if out:
        return "", remark + stays_at_fault(out)
    lost = lost_nodes(incident, job)
    no_replacement = not options.patience and not job.can(Ability.REPLACE)
    if lost and no_replacement and enough <= largest_world(job) < members(job) and not _is_spent(job, shrink):
        return f"{listed(lost)} is gone, and nobody can come in its place; {shrink.policy} below goes on without it", ""
    return "", remark


def _is_spent(job: JobState, shrink: ChainEntry) -> bool:
    return attempts(job, shrink.policy, options_of(shrink).window) >= limit(shrink)


def _patience_s(incident: IncidentState, job: JobState, options: ProcessRestartOptions, own: str) -> float | None:
    """Seconds to wait for a lost node; None: the job's time constants apply."""
    if not lost_nodes(incident, job):
        return None
    if options.patience > 0:
        return float(options.patience)
    shrink = next(iter(having(entries_below(job, own, incident), Trait.SHRINKS)), None)
    left = largest_world(job)
    if job.spec is None or shrink is None or not max(1, options_of(shrink).min_nodes) <= left < members(job):
        return None
    return job.spec.timing.join_window_s


def _waits(incident: IncidentState, job: JobState, patience_s: float | None) -> str:
    """Which nodes the new round waits for, and how long; empty if enough nodes are available."""
    lost, left = lost_nodes(incident, job), largest_world(job)
    if not lost or left >= members(job) or job.spec is None:
        return ""
    timing = job.spec.timing
    if patience_s is None:
        patience_s = timing.join_window_s if left else timing.return_window_s
    return f"; waits {format_duration(patience_s)} for {listed(lost)} to come back, or for another node"


def _check(incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> str:
    """Which nodes are checked before the restart: none (empty), ``suspect`` ones, or ``all``."""
    if options.check == "never" or not job.can(Ability.CHECK):
        return ""
    if options.check == "always":
        return "all"
    known = facts(incident)
    root = root_report(incident, job)
    suspicious = known.at_fault == "node" or not known.repeats or (root is not None and root.source == "health")
    # Masters of these revisions did not know the value `none`, and had the nodes checked.
    checked_for_none = follows(job, PEER_NOT_HANG) and not follows(job, NO_NODE_AT_FAULT)
    if not suspicious or known.at_fault == "user" or (known.at_fault == "none" and not checked_for_none):
        return ""
    return "suspect" if culprit(incident) else "all"
