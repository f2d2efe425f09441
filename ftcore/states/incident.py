"""The machine of an incident, from the first evidence to its resolution.

House rules: stopping and restarting never wait for the diagnosis; the nodes at fault may be amended until the incident
closes. A worse diagnosis is a new revision, and the chain starts again at its first policy. When a plan does not reach
its outcome, the incident is escalated to the policies after it. They are asked as well after a plan that is not meant
to resolve the incident (a dying checkpoint, an alert) is complete.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class IncidentPhase(StrEnum):
    """Phases of an incident."""

    OPEN = "open"
    """It was just opened; the chain is asked next."""
    DIAGNOSING = "diagnosing"
    """The diagnosis became worse; the chain is asked again from its first policy."""
    ACTING = "acting"
    """A policy took it; its plan is being carried out."""
    DEFERRED = "deferred"
    """A policy took it; training continues until replacements are ready for the nodes that leave."""
    VERIFYING = "verifying"
    """The plan was carried out; its outcome is awaited."""
    ESCALATING = "escalating"
    """The plan failed, or was not meant to resolve the incident; the next policies are asked."""
    RESOLVED = "resolved"
    """The outcome was reached."""
    EXHAUSTED = "exhausted"
    """No policy took it, or every plan failed."""


I = IncidentPhase  # noqa: E741  (the table reads better with one letter, and no other letter is taken)
_CONSIDERED = (I.OPEN, I.DIAGNOSING, I.ACTING, I.DEFERRED, I.VERIFYING, I.ESCALATING)

INCIDENT = Machine(
    name="incident",
    doc="One incident, and the response to it.",
    states=IncidentPhase,
    initial=I.OPEN,
    finals=(I.RESOLVED, I.EXHAUSTED),
    table=(
        *rows("policy.considered/take", (I.OPEN, I.DIAGNOSING, I.ESCALATING), I.ACTING),
        Row("departure.deferred", I.ACTING, I.DEFERRED),
        Row("departure.begun", I.DEFERRED, I.ACTING),
        *rows("incident.rediagnosed/worse", _CONSIDERED, I.DIAGNOSING),
        Row("round.started", I.ACTING, I.VERIFYING),
        Row("incident.continued", I.ACTING, I.ESCALATING),
        *rows("incident.escalated", (I.ACTING, I.DEFERRED, I.VERIFYING), I.ESCALATING),
        *rows("incident.resolved", (I.OPEN, I.ACTING, I.DEFERRED, I.VERIFYING), I.RESOLVED),
        *rows("incident.exhausted", (I.OPEN, I.DIAGNOSING, I.ESCALATING), I.EXHAUSTED),
    ),
    ignored=(
        Ignored(
            "policy.considered/pass",
            (I.OPEN, I.DIAGNOSING, I.ESCALATING),
            "the verdict is recorded; the next policy is asked",
        ),
        Ignored(
            "incident.rediagnosed/detail",
            _CONSIDERED,
            "the diagnosis was amended; the plan stays the same",
        ),
        Ignored("plan.applied", (I.ACTING,), "the next event continues or resolves the incident"),
    ),
)
