"""Will it happen again? What the log and the taxonomy say about it."""

from collections.abc import Sequence

import attrs

from ftcore.faults.taxonomy import FaultClass, facts_of, settings_for
from ftcore.ids import SECOND, seconds
from ftcore.policies.traits import limit, traits_of
from ftcore.replay.explain import Incident
from ftcore.states.model import JobState

DAY_NS = 86_400 * SECOND


@attrs.frozen(kw_only=True)
class Budget:
    """What is left of a policy's budget at the job's end, or at the last event of one that runs.

    Args:
        policy: the policy.
        used: attempts in the window.
        limit: attempts allowed.
        window_s: length of the window in seconds.
    """

    policy: str
    used: int
    limit: int
    window_s: float


@attrs.frozen(kw_only=True)
class Outlook:
    """What is to be expected after a fault.

    Args:
        of_class: faults of its class in the log, this one included.
        of_class_day: of these, in the 24 hours up to the job's end.
        at_node: faults in the log that began at its node, this one included; 0: no node is known.
        repeats: by its class, a restart does not help: it occurs again at the same step.
        meaning: of the class.
        usual_causes: of the class.
        advice: what to check.
        setting: settings that may help; empty: none is known.
        budget: of the policy that took it last; None: that one has no budget.
    """

    of_class: int
    of_class_day: int
    at_node: int
    repeats: bool
    meaning: str
    usual_causes: str
    advice: str
    setting: str
    budget: Budget | None


def outlook(incident: Incident, incidents: Sequence[Incident], state: JobState, end: int) -> Outlook | None:
    """What to expect after an incident; None if it is not a fault of a known class.

    Args:
        incident: the incident.
        incidents: all of the log.
        state: the folded state at the end of the log.
        end: of the job, or the last event of one that runs; nanoseconds since the epoch.
    """
    if incident.kind not in ("fault", "warning") or incident.cls not in set(FaultClass):
        return None
    cls = FaultClass(incident.cls)
    same = [each for each in incidents if each.cls == incident.cls and each.kind == incident.kind]
    node = incident.root.node
    step = next((failure.last[0].step for failure in incident.failures if failure.last), None)
    facts = facts_of(cls, incident.detail, step)
    return Outlook(
        of_class=len(same),
        of_class_day=sum(each.opened > end - DAY_NS for each in same),
        at_node=sum(each.root.node == node and each.kind == "fault" for each in incidents) if node else 0,
        repeats=facts.repeats,
        meaning=facts.meaning,
        usual_causes=facts.causes,
        advice=facts.advice,
        setting=settings_for(cls, incident.detail),
        budget=_budget(incident, state, end),
    )


def _budget(incident: Incident, state: JobState, end: int) -> Budget | None:
    taken = [asked.name for asked in incident.policies if asked.verdict == "take"]
    entry = next((each for each in state.policy.chain if taken and each.policy == taken[-1]), None)
    if entry is None or entry.external or not traits_of(entry.policy).budget:
        return None
    window_s = float(entry.options.get("window", 0.0))
    used = sum(time > end - seconds(window_s) for time in state.history.attempts.get(entry.policy, ()))
    return Budget(policy=entry.policy, used=used, limit=limit(entry), window_s=window_s)
