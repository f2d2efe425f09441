"""``grow``: take in nodes that stand by, up to the next size that the job allows.

The way back from ``shrink``, and the use of nodes that come late. It costs a restart, so it is made seldom, never while
restarts are running out, and not for a node that has just failed.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from ftcore.events.policy import Terms
from ftcore.ids import SECOND, seconds
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import ROUND_OPTIONS, cooling_s
from ftcore.policies.situation import members, room
from ftcore.policies.words import lasting, plural
from ftcore.states.model import IncidentState, JobState

RESTARTING = (
    "grow",
    "shrink",
    "process_restart",
    "pod_replacement",
    "hot_swap",
    "evict_straggler",
    "rollback_and_skip",
)
"""Policies whose plans cost a round."""


class Grow:
    """Start again with more nodes."""

    name: ClassVar[str] = "grow"
    doc: ClassVar[str] = "Take in nodes that stand by, if they make a larger world."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes the chance that enough nodes stand by for the next allowed size",
        "passes within `every` of its last growth, or of the last restart",
        "passes while less than `reserve` of the restarts of `process_restart` are left: a growth might cost one more",
        "leaves out nodes that were at fault within `steady`",
    )
    kinds: ClassVar[tuple[str, ...]] = ("opportunity",)
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[Mapping[str, Option]] = {
        "every": Option(default=600, kind="duration", doc="Time between two growths, and after a restart."),
        "steady": Option(default=600, kind="duration", doc="Time for which a node that was at fault is not taken in."),
        "reserve": Option(
            default=0.5,
            kind="number",
            minimum=0,
            maximum=1,
            doc="Share of the restarts of `process_restart` that must be left; 0: they are not looked at.",
        ),
        **ROUND_OPTIONS,
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take what is worth a restart."""
        if job.world is None or job.spec is None:
            return Pass(reason="there is no world that could grow")
        shaky, again_s = _shaky(job, options["steady"])
        count, now = room(job, shaky), members(job)
        if count <= now:
            if shaky and room(job) > now:
                return Pass(reason=f"{', '.join(shaky[:4])} failed only lately", again_s=again_s)
            return Pass(reason=f"no larger world than {plural(now, 'node')} can be formed")
        rest = max(cooling_s(job, name, options["every"]) for name in RESTARTING)
        if rest > 0:
            return Pass(
                reason=f"the last restart was only lately; the next growth is due in {lasting(round(rest))}",
                again_s=rest,
            )
        why, again_s = _restarts_run_out(job, options["reserve"])
        if why:
            return Pass(reason=why, again_s=again_s)
        return Take(
            plan=PlanKind.RESTART,
            reason=f"{plural(count, 'node')} instead of {now} can train",
            grace_s=options["grace"],
            deadline_s=options["deadline"],
            terms=Terms(want=count, patience_s=job.spec.timing.join_window_s),
        )


def _shaky(job: JobState, steady_s: float) -> tuple[tuple[str, ...], float]:
    """Standby nodes that were at fault lately, and the seconds until the first of them is to be trusted again."""
    since = job.time - seconds(steady_s)
    inside = {member.node for member in job.world.members} if job.world is not None else set()
    found = {
        node: times[-1] for node, times in job.node_faults.items() if times and times[-1] > since and node not in inside
    }
    return tuple(found), min((time - since for time in found.values()), default=0) / SECOND


def _restarts_run_out(job: JobState, reserve: float) -> tuple[str, float]:
    """Why restarts are too few for a growth, and the seconds until enough of them are too long ago to count."""
    for entry in job.chain:
        if entry.policy != "process_restart" or not reserve:
            continue
        most, window = entry.options["max_restarts"], seconds(entry.options["window"])
        made = sorted(time for time in job.attempts.get(entry.policy, ()) if time > job.time - window)
        gone = next(n for n in range(len(made) + 1) if n == len(made) or len(made) - n < (1 - reserve) * most)
        if gone:
            again_s = (made[gone - 1] + window - job.time) / SECOND
            return f"{len(made)} of {most} restarts are spent; a growth might cost one more", again_s
    return "", 0.0
