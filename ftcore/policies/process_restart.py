"""``process_restart``: stop all workers and start them again on the nodes there are.

The workers load their last checkpoint. First attempt at once; as long as no attempt leads to a completed step, each
further one waits twice as long as the one before, with a jitter that spreads jobs apart and is the same on every
replay.

The cause decides the remedy: a restart cures a process, not a machine. A fault of a node is left to an entry below that
can do better; if none can, a restart is still the best there is, and its reason says what was missing.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.events.policy import ChainEntry, Terms
from ftcore.policies.abilities import lacking
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import RoundOptions, attempts, round_terms, spent
from ftcore.policies.options import Options, Rule, never_reached, number, says, span
from ftcore.policies.replacement import judge
from ftcore.policies.situation import (
    class_of,
    crash_loop,
    culprit,
    entries_below,
    facts,
    gone,
    interrupted,
    is_member,
    members,
    room,
    root_report,
    unfit,
    unreadable,
    unreadable_file,
)
from ftcore.policies.traits import Trait, declares, having, limit, options_of
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, listed


class ProcessRestartOptions(RoundOptions):
    """What ``process_restart`` may be told."""

    max_restarts: Annotated[int, number("Restarts allowed in `window`; one more is passed on.", maximum=1000)] = 20
    window: Annotated[float, span("The time over which restarts are counted.", minimum=1)] = 3600.0
    same_fault: Annotated[
        int,
        number("A fault of the script or the data seen this often in a row at the same step is passed on.", minimum=1),
    ] = 2
    patience: Annotated[
        float,
        span(
            "How long is waited for a lost node to come back. 0: if `shrink` stands below and enough nodes are "
            "left for it, not at all, or for the job's join window where the platform can launch nodes; else as "
            "the job's time constants say."
        ),
    ] = 0.0
    check: Annotated[
        Literal["always", "suspect", "never"],
        says(
            "Check the health of the nodes before they start again, where `job: health` has nodes checked at all;"
            " `suspect`: after a fault that may be a node's: that node, or all if none is named."
        ),
    ] = "suspect"

    rules: ClassVar[tuple[Rule, ...]] = (never_reached("same_fault", "max_restarts", beyond=1),)


@declares(Trait.COSTS_A_ROUND, Trait.RESTARTS, budget="max_restarts")
class ProcessRestart:
    """Restart the workers in place, within a budget."""

    name: ClassVar[str] = "process_restart"
    doc: ClassVar[str] = (
        "Stop all workers and start them again on the nodes there are; they resume from their checkpoint."
    )
    conditions: ClassVar[tuple[str, ...]] = (
        "takes any fault, and brings the workers back that a plan for anything else has stopped in vain",
        "passes a fault of a node to `pod_replacement` or `shrink` below it, if that can take the node out",
        "passes the loss of a node to `shrink` below it, if enough are left, nobody can come, and no `patience` is set",
        "passes a fault of the script or the data that came `same_fault` times in a row at the same step",
        "goes back to the checkpoint before the newest, if that could not be read `same_fault` times in a row, the "
        "script told of several, and it declares `rollback`",
        "passes when its own restart brought no step and the same fault came again",
        "passes when `max_restarts` in `window` are spent",
        "passes requests",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "stop", "interrupted")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = ProcessRestartOptions

    def considers(self, incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> Verdict:
        """Take faults within the budget; pass requests, repeated faults of the script, and spent budgets."""
        if incident.kind != "fault" and not interrupted(incident, job):
            wish = incident.fault.detail
            return Pass(reason=f"asked to {wish if wish and wish != 'stop' else 'end'}, not to restart")
        older = _older_checkpoint(incident, job, options)
        why = ("" if older is not None else _no_remedy(incident, job, options)) or spent(
            job, self.name, options.max_restarts, options.window, "restarts"
        )
        if why:
            return Pass(reason=why)
        if incident.kind == "fault":
            better, but = _better(incident, job, options, self.name)
        else:
            better, but = "", _aftermath(incident)
        if better:
            return Pass(reason=better)
        if incident.fault.detail == "health-check" and is_member(job, culprit(incident)):
            return Pass(reason=f"{culprit(incident)} failed its health check: it must not train as it is{but}")
        attempt = attempts(job, self.name, options.window) + 1
        if older is not None:
            but = f"; goes back to the checkpoint of step {older}: {unreadable_file(incident, job)} cannot be read"
        patience_s = _patience_s(incident, job, options, self.name)
        waits = _waits(incident, job, patience_s)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"restart {attempt} of {options.max_restarts} in {format_duration(options.window)}{but}{waits}",
            attempt=attempt,
            **round_terms(job, incident, options),
            terms=Terms(patience_s=patience_s, check=_check(incident, job, options), rollback_to=older),
        )


def _older_checkpoint(incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> int | None:
    """The step to go back to where the newest checkpoint cannot be read; None where a plain restart is tried first,
    where no older one is kept, or where the script cannot be told which to take."""
    again = unreadable(incident) and job.repeat.count >= options.same_fault
    if not again or incident.kind != "fault" or not job.can(Ability.ROLLBACK) or len(job.checkpoints) < 2:
        return None
    return job.checkpoints[-2]


def _no_remedy(incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> str:
    if incident.kind != "fault":
        return "" if ProcessRestart.name not in incident.tried else "its own restart did not bring the workers back"
    cls = class_of(incident)
    known = facts(incident)
    comes_again = known.repeats or known.at_fault == "data"
    if unreadable(incident) and job.repeat.count >= options.same_fault:
        times = f"{job.repeat.count} times in a row"
        return f"{unreadable_file(incident, job)} could not be read {times}: a restart is no remedy"
    if comes_again and job.repeat.count >= options.same_fault:
        return f"{cls} came {job.repeat.count} times in a row at {_place(incident)}: a restart is no remedy"
    if ProcessRestart.name in incident.tried and job.repeat.count >= options.same_fault:
        return "its own restart brought no completed step, and the same fault came again"
    return ""


def _place(incident: IncidentState) -> str:
    step = incident.fault.step
    return "the start, before any step" if step is None else f"step {step}"


def _better(incident: IncidentState, job: JobState, options: ProcessRestartOptions, own: str) -> tuple[str, str]:
    """Which entry below does better for a node at fault; else what kept it from that, for the record."""
    below, but = entries_below(job, own, incident), ""
    for replacement in having(below, Trait.REPLACES):
        found = judge(incident, job, replacement.policy, options_of(replacement))
        nodes = (*found.gone, *found.out)
        lack = lacking((Ability.REPLACE,), job)
        if nodes and not lack:
            return f"{listed(nodes)}: a node is at fault; {replacement.policy} below replaces it", ""
        if nodes:
            but = f"; a node is at fault ({listed(nodes)}), but nothing here can launch another"
        elif found.why_not and (gone(incident, job) or unfit(incident, job, options_of(replacement))):
            but = f"; no replacement: {found.why_not}"
    shrink = next(iter(having(below, Trait.SHRINKS)), None)
    if shrink is None:
        return "", but
    out = unfit(incident, job, options_of(shrink)) or crash_loop(incident, job, options_of(shrink))
    enough = max(1, options_of(shrink).min_nodes)
    if out and room(job, out) >= enough:
        return f"{listed(out)} is at fault; {shrink.policy} below leaves it out", ""
    if out:
        return "", but + _stays(out)
    lost = gone(incident, job)
    nobody_comes = not options.patience and not job.can(Ability.REPLACE)
    if lost and nobody_comes and enough <= room(job) < members(job) and not _shrunk_enough(job, shrink):
        return f"{listed(lost)} is gone, and nobody can come in its place; {shrink.policy} below goes on without it", ""
    return "", but


def _shrunk_enough(job: JobState, shrink: ChainEntry) -> bool:
    return attempts(job, shrink.policy, options_of(shrink).window) >= limit(shrink)


def _stays(out: tuple[str, ...]) -> str:
    """Why a node that ought to be left out is not, and what would let it be."""
    return (
        f"; {listed(out)} is at fault and stays, for too few nodes would be left without it: start ftrun on one more "
        "node as a spare, or let the job go on with fewer (--nnodes MIN:MAX)"
    )


def _aftermath(incident: IncidentState) -> str:
    return f"; brings the workers back that {incident.tried[-1]} stopped in vain"


def _patience_s(incident: IncidentState, job: JobState, options: ProcessRestartOptions, own: str) -> float | None:
    """Seconds to wait for a lost node; None: as the job's time constants say."""
    if not gone(incident, job):
        return None
    if options.patience > 0:
        return float(options.patience)
    shrink = next(iter(having(entries_below(job, own, incident), Trait.SHRINKS)), None)
    left = room(job)
    if job.spec is None or shrink is None or not max(1, options_of(shrink).min_nodes) <= left < members(job):
        return None
    return job.spec.timing.join_window_s


def _waits(incident: IncidentState, job: JobState, patience_s: float | None) -> str:
    """For whom the new round waits, and how long; empty if enough nodes are there."""
    lost, left = gone(incident, job), room(job)
    if not lost or left >= members(job) or job.spec is None:
        return ""
    timing = job.spec.timing
    if patience_s is None:
        patience_s = timing.join_window_s if left else timing.return_window_s
    return f"; waits {format_duration(patience_s)} for {listed(lost)} to come back, or for another node"


def _check(incident: IncidentState, job: JobState, options: ProcessRestartOptions) -> str:
    """Which nodes are checked first: none, those that may be at fault, or all."""
    if options.check == "never" or not job.can(Ability.CHECK):
        return ""
    if options.check == "always":
        return "all"
    known = facts(incident)
    root = root_report(incident, job)
    suspicious = known.at_fault == "node" or not known.repeats or (root is not None and root.source == "health")
    if not suspicious or known.at_fault in ("user", "nobody"):
        return ""
    return "suspect" if culprit(incident) else "all"
