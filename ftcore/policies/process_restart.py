"""``process_restart``: stop all workers and start them again on the nodes there are.

The workers load their last checkpoint. First attempt at once; as long as no attempt leads to a completed step, each
further one waits twice as long as the one before, with a jitter that spreads jobs apart and is the same on every
replay.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.ids import seconds
from ftcore.policies.base import Ability, Option, Pass, PlanKind, Take, Verdict
from ftcore.states.model import IncidentState, JobState

BACKOFF_DOUBLINGS_MAX = 30
"""2 ** 30 times any base is beyond every cap; more would only make big numbers."""


class ProcessRestart:
    """Restart the workers in place, within a budget."""

    name: ClassVar[str] = "process_restart"
    doc: ClassVar[str] = (
        "Stop all workers and start them again on the nodes there are; they resume from their checkpoint."
    )
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[Mapping[str, Option]] = {
        "max_restarts": Option(
            default=20, kind="int", maximum=1000, doc="Restarts allowed in `window`; one more is passed on."
        ),
        "window": Option(default=3600, kind="duration", minimum=1, doc="The time over which restarts are counted."),
        "same_fault": Option(
            default=2,
            kind="int",
            minimum=1,
            doc="A fault of the script seen this often in a row at the same step is passed on.",
        ),
        "backoff": Option(
            default=1,
            kind="duration",
            doc="Wait before the second attempt without progress; doubles with each further.",
        ),
        "backoff_max": Option(default=60, kind="duration", doc="The longest wait."),
        "grace": Option(default=10, kind="duration", doc="Time between TERM and KILL of a worker."),
        "deadline": Option(
            default=1800, kind="duration", doc="Time from the new start to its first completed step; 0: no limit."
        ),
    }

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take faults within the budget; pass requests, repeated faults of the script, and spent budgets."""
        if incident.kind == "request":
            return Pass(reason="asked to end, not to restart")
        cls = FaultClass(incident.fault.cls)
        if CLASSES[cls].repeats and job.repeat.count >= options["same_fault"]:
            return Pass(
                reason=f"{cls} came {job.repeat.count} times in a row at {_place(incident)}: a restart is no remedy"
            )
        if self.name in incident.tried and job.repeat.count >= options["same_fault"]:
            return Pass(reason="its own restart brought no completed step, and the same fault came again")
        since = job.time - seconds(options["window"])
        recent = [time for time in job.attempts.get(self.name, ()) if time > since]
        if len(recent) >= options["max_restarts"]:
            return Pass(
                reason=f"budget spent: {len(recent)} restarts in the last {options['window']:g} s, "
                f"{options['max_restarts']} allowed"
            )
        return Take(
            plan=PlanKind.RESTART,
            reason=f"restart {len(recent) + 1} of {options['max_restarts']} in {options['window']:g} s",
            grace_s=options["grace"],
            wait_s=backoff_s(job, incident.id, options["backoff"], options["backoff_max"]),
            deadline_s=options["deadline"],
            attempt=len(recent) + 1,
        )


def backoff_s(job: JobState, incident: str, base_s: float, cap_s: float) -> float:
    """Seconds to wait before the next attempt: 0 for the first after progress, then doubling; up to 25 % of jitter."""
    if job.streak == 0:
        return 0.0
    wait = min(cap_s, base_s * 2.0 ** min(job.streak - 1, BACKOFF_DOUBLINGS_MAX))
    spread = hashlib.blake2b(f"{job.job}/{incident}/{job.streak}".encode(), digest_size=2).digest()
    return round(wait * (1 + 0.25 * int.from_bytes(spread, "big") / 65536), 3)


def _place(incident: IncidentState) -> str:
    step = incident.fault.step
    return "the start, before any step" if step is None else f"step {step}"
