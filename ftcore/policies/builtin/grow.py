"""``grow``: add standby nodes, up to the next size that the job allows.

It undoes a ``shrink`` and makes use of nodes that join late. It costs a restart, so it runs rarely, not while restarts
are nearly spent, and not for a node that was at fault recently.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.ids import SECOND, seconds
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import RoundOptions, cooling_s
from ftcore.policies.options import Options, number, span
from ftcore.policies.situation import hands_over, is_alive, largest_world, members, stays_in_another_size
from ftcore.policies.traits import Trait, declares, having, limit, named, options_of
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import NodePhase
from ftcore.wording import format_duration, listed, plural

STEADY_DOUBLINGS_MAX = 6
"""Bounds the waiting time for a node that keeps failing: 2 ** 6 = 64 times `steady`."""

FRESH_S = 1.0
"""Age in seconds up to which a checkpoint counts as just committed."""


class GrowOptions(RoundOptions):
    """Options of ``grow``."""

    every: Annotated[float, span("Minimum time after the last growth or restart.")] = 600.0
    steady: Annotated[float, span("Time after a fault of a node during which the node is not added.")] = 600.0
    reserve: Annotated[
        float,
        number("Share of the restarts of `process_restart` that must be left; 0: no limit.", maximum=1),
    ] = 0.5
    checkpoint: Annotated[
        float,
        span(
            "If the script reports its checkpoints, wait for the next one before growing, unless the last one is older "
            "than this. 0: never wait. No effect if the script registered its state."
        ),
    ] = 1800.0


@declares(Trait.COSTS_A_ROUND, Trait.GROWS)
class Grow:
    """Start again with more nodes."""

    name: ClassVar[str] = "grow"
    doc: ClassVar[str] = "Add standby nodes, if they make a larger world possible."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes an opportunity: there are enough standby nodes that can start workers at once for the next allowed size",
        "passes within `every` of the last growth or restart, unless an operator admitted a node",
        "within the join window after a shrink, waits neither for `every` nor for a checkpoint, and ignores one fault "
        "per node",
        "passes while less than `reserve` of the restarts of `process_restart` are left: growing may cost a restart",
        "waits for the next checkpoint if the script reports them, so that few steps are lost; not if the script "
        "registered its state: then it is saved at the step boundary where the workers stop",
        "keeps the processes if the script reports the ability `resize`: they load the newest state from memory and "
        "go on beside the new ones",
        "does not add nodes that were at fault within `steady`; the time doubles with each further fault of the node",
    )
    kinds: ClassVar[tuple[str, ...]] = ("opportunity",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = GrowOptions

    def considers(self, incident: IncidentState, job: JobState, options: GrowOptions) -> Verdict:
        """Take an opportunity that is worth a restart."""
        if job.rounds.world is None or job.spec is None:
            return Pass(reason="no world is formed yet")
        just_shrunk = _rest_s(job, Trait.SHRINKS, job.spec.timing.join_window_s) > 0
        unsteady, again_s = _unsteady(job, options.steady, ignored=int(just_shrunk))
        count, now = largest_world(job, unsteady), members(job)
        if count <= now:
            if unsteady and largest_world(job) > now:
                return Pass(reason=f"standby nodes were at fault recently: {', '.join(unsteady[:4])}", again_s=again_s)
            return Pass(reason=f"no larger world than {plural(now, 'node')} can be formed")
        rest = _rest_s(job, Trait.COSTS_A_ROUND, options.every)
        admitted = _admitted(job)
        if rest > 0 and not admitted and not just_shrunk:
            return Pass(
                reason=f"cool-down after a restart: the next growth is possible in {format_duration(round(rest))}",
                again_s=rest,
            )
        why, again_s = _restarts_run_out(job, options.reserve)
        if why:
            return Pass(reason=why, again_s=again_s)
        parks = stays_in_another_size(incident, job, self.name)
        wait_s = 0.0 if just_shrunk or parks or hands_over(job) else _until_saved(job, options.checkpoint)
        if wait_s > 0:
            most = format_duration(round(wait_s))
            reason = f"waits for the next checkpoint, at most {most}: a restart now would lose steps"
            return Pass(reason=reason, again_s=wait_s, at_commit=True)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{plural(count, 'node')} instead of {now} can train"
            + (" in the same processes" if parks else "")
            + (f"; {listed(admitted)} was admitted again" if admitted else ""),
            grace_s=options.grace,
            deadline_s=options.deadline,
            terms=Terms(
                want=count,
                avoid=unsteady,
                survivors="park" if parks else "stop",
                patience_s=job.spec.timing.join_window_s,
            ),
        )


def _rest_s(job: JobState, trait: Trait, cool_down_s: float) -> float:
    """Seconds until the last plan of a policy with this trait is ``cool_down_s`` old; 0 if it is older."""
    return max(cooling_s(job, policy, cool_down_s) for policy in named(trait))


def _admitted(job: JobState) -> tuple[str, ...]:
    """Standby nodes that an operator admitted again; such a request does not wait for the cool-down."""
    found = (job.membership.nodes.get(name) for name in job.membership.admitted)
    return tuple(node.node for node in found if node is not None and node.phase is NodePhase.STANDBY)


def _until_saved(job: JobState, patience_s: float) -> float:
    """Seconds to wait for the next checkpoint; 0: one was just committed, or none is expected."""
    age_s = (job.time - job.training.committed) / SECOND
    return patience_s - age_s if job.training.committed and FRESH_S < age_s < patience_s else 0.0


def _unsteady(job: JobState, steady_s: float, ignored: int) -> tuple[tuple[str, ...], float]:
    """Standby nodes that were at fault recently, and the seconds until the first of them may be added.

    Nodes with at most ``ignored`` faults do not count.
    """
    world = job.rounds.world
    waits: dict[str, int] = {}
    for node, times in job.evidence.node_faults.items():
        if len(times) > ignored and is_alive(job, node) and (world is None or world.seat(node) is None):
            quiet = seconds(steady_s * 2.0 ** min(len(times) - 1, STEADY_DOUBLINGS_MAX))
            waits[node] = times[-1] + quiet - job.time
    found = {node: rest for node, rest in waits.items() if rest > 0}
    return tuple(found), min(found.values(), default=0) / SECOND


def _restarts_run_out(job: JobState, reserve: float) -> tuple[str, float]:
    """Why too few restarts are left for a growth, and the seconds until enough of them leave the window."""
    for entry in having(job.policy.chain, Trait.RESTARTS) if reserve else ():
        most, window = limit(entry), seconds(options_of(entry).window)
        made = sorted(time for time in job.history.attempts.get(entry.policy, ()) if time > job.time - window)
        excess = next(n for n in range(len(made) + 1) if n == len(made) or len(made) - n < (1 - reserve) * most)
        if excess:
            again_s = (made[excess - 1] + window - job.time) / SECOND
            return f"{len(made)} of {most} restarts are spent, and growing may cost another one", again_s
    return "", 0.0
