"""``grow``: take in nodes that stand by, up to the next size that the job allows.

The way back from ``shrink``, and the use of nodes that come late. It costs a restart, so it is made seldom, never while
restarts are running out, and not for a node that has just failed.
"""

from typing import Annotated, ClassVar

from ftcore.events.policy import Terms
from ftcore.ids import SECOND, seconds
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import RoundOptions, cooling_s
from ftcore.policies.options import Options, number, span
from ftcore.policies.situation import is_alive, members, room
from ftcore.policies.traits import Trait, declares, having, limit, named, options_of
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import NodePhase
from ftcore.wording import format_duration, listed, plural

STEADY_DOUBLINGS_MAX = 6
"""A node that fails again and again is left out at most this often doubled: 64 times `steady`."""

FRESH_S = 1.0
"""A checkpoint is as good as new for so long."""


class GrowOptions(RoundOptions):
    """What ``grow`` may be told."""

    every: Annotated[float, span("Time between two growths, and after a restart.")] = 600.0
    steady: Annotated[float, span("Time for which a node that was at fault is not taken in.")] = 600.0
    reserve: Annotated[
        float,
        number("Share of the restarts of `process_restart` that must be left; 0: they are not looked at.", maximum=1),
    ] = 0.5
    checkpoint: Annotated[
        float,
        span(
            "Where the script tells of its checkpoints, it grows right behind one; but the next is not waited for"
            " once the last is so old. 0: it is never waited for."
        ),
    ] = 1800.0


@declares(Trait.COSTS_A_ROUND, Trait.GROWS)
class Grow:
    """Start again with more nodes."""

    name: ClassVar[str] = "grow"
    doc: ClassVar[str] = "Take in nodes that stand by, if they make a larger world."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes the chance that enough nodes stand by for the next allowed size",
        "passes within `every` of its last growth, or of the last restart, unless somebody admitted a node again",
        "waits for nothing within the join window after a shrink, which waited for nobody; one fault is forgiven then",
        "passes while less than `reserve` of the restarts of `process_restart` are left: a growth might cost one more",
        "waits for the next checkpoint where the script tells of them, so that hardly a step is lost",
        "leaves out nodes that were at fault within `steady`, and twice as long for each further fault of theirs",
    )
    kinds: ClassVar[tuple[str, ...]] = ("opportunity",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = GrowOptions

    def considers(self, incident: IncidentState, job: JobState, options: GrowOptions) -> Verdict:
        """Take what is worth a restart."""
        if job.world is None or job.spec is None:
            return Pass(reason="there is no world that could grow")
        too_early = _rest_s(job, Trait.SHRINKS, job.spec.timing.join_window_s) > 0
        shaky, again_s = _shaky(job, options.steady, forgiven=int(too_early))
        count, now = room(job, shaky), members(job)
        if count <= now:
            if shaky and room(job) > now:
                return Pass(reason=f"{', '.join(shaky[:4])} failed only lately", again_s=again_s)
            return Pass(reason=f"no larger world than {plural(now, 'node')} can be formed")
        rest = _rest_s(job, Trait.COSTS_A_ROUND, options.every)
        admitted = _admitted(job)
        if rest > 0 and not admitted and not too_early:
            return Pass(
                reason=f"the last restart was only lately; the next growth is due in {format_duration(round(rest))}",
                again_s=rest,
            )
        why, again_s = _restarts_run_out(job, options.reserve)
        if why:
            return Pass(reason=why, again_s=again_s)
        wait_s = 0.0 if too_early else _until_saved(job, options.checkpoint)
        if wait_s > 0:
            most = format_duration(round(wait_s))
            reason = f"waits for the next checkpoint, at most {most}: a restart now would cost steps"
            return Pass(reason=reason, again_s=wait_s, at_commit=True)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{plural(count, 'node')} instead of {now} can train"
            + (f"; {listed(admitted)} was admitted again" if admitted else ""),
            grace_s=options.grace,
            deadline_s=options.deadline,
            terms=Terms(want=count, avoid=shaky, patience_s=job.spec.timing.join_window_s),
        )


def _rest_s(job: JobState, trait: Trait, cool_down_s: float) -> float:
    """Seconds until the last plan of a policy with this trait is ``cool_down_s`` old; 0 if it is older."""
    return max(cooling_s(job, policy, cool_down_s) for policy in named(trait))


def _admitted(job: JobState) -> tuple[str, ...]:
    """Standby nodes that somebody wants to train again: a person's word does not wait for a timer."""
    found = (job.nodes.get(name) for name in job.admitted)
    return tuple(node.node for node in found if node is not None and node.phase is NodePhase.STANDBY)


def _until_saved(job: JobState, patience_s: float) -> float:
    """Seconds for which the next checkpoint is waited for; 0: one was just made, or none is to be expected."""
    age_s = (job.time - job.committed) / SECOND
    return patience_s - age_s if job.committed and FRESH_S < age_s < patience_s else 0.0


def _shaky(job: JobState, steady_s: float, forgiven: int) -> tuple[tuple[str, ...], float]:
    """Standby nodes that were at fault lately, more than ``forgiven`` times, and the seconds until the first of them is
    to be trusted again."""
    world = job.world
    left: dict[str, int] = {}
    for node, times in job.node_faults.items():
        if len(times) > forgiven and is_alive(job, node) and (world is None or world.seat(node) is None):
            quiet = seconds(steady_s * 2.0 ** min(len(times) - 1, STEADY_DOUBLINGS_MAX))
            left[node] = times[-1] + quiet - job.time
    found = {node: rest for node, rest in left.items() if rest > 0}
    return tuple(found), min(found.values(), default=0) / SECOND


def _restarts_run_out(job: JobState, reserve: float) -> tuple[str, float]:
    """Why restarts are too few for a growth, and the seconds until enough of them are too long ago to count."""
    for entry in having(job.chain, Trait.RESTARTS) if reserve else ():
        most, window = limit(entry), seconds(options_of(entry).window)
        made = sorted(time for time in job.attempts.get(entry.policy, ()) if time > job.time - window)
        gone = next(n for n in range(len(made) + 1) if n == len(made) or len(made) - n < (1 - reserve) * most)
        if gone:
            again_s = (made[gone - 1] + window - job.time) / SECOND
            return f"{len(made)} of {most} restarts are spent; a growth might cost one more", again_s
    return "", 0.0
