"""The machine of an incident: from the first sign of a fault to the step that shows it is over.

House rules: stopping and restarting never wait for the diagnosis; the culprit may be amended until the incident closes.
A worse reading makes a new revision and asks the chain again from its top; a plan that does not bring its outcome is
escalated past, and the rest of the chain is asked. So it is after a plan that is not meant to end the incident (a dying
checkpoint, a message to people) has done its part.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class IncidentPhase(StrEnum):
    """Where an incident is."""

    OPEN = "open"
    """Just opened; the chain is asked next."""
    DIAGNOSING = "diagnosing"
    """A new reading; the chain is asked again from its top."""
    ACTING = "acting"
    """A policy took it; its plan is being carried out."""
    DEFERRED = "deferred"
    """A policy took it; training goes on until other nodes are ready for the places of those that leave."""
    VERIFYING = "verifying"
    """The plan is done; waiting for its outcome."""
    ESCALATING = "escalating"
    """The plan failed, or was not meant to be the last; the next policies are asked."""
    RESOLVED = "resolved"
    """The outcome was reached."""
    EXHAUSTED = "exhausted"
    """Nobody took it or succeeded."""


I = IncidentPhase  # noqa: E741  (the table reads better with one letter, and no other letter is taken)
_CONSIDERED = (I.OPEN, I.DIAGNOSING, I.ACTING, I.DEFERRED, I.VERIFYING, I.ESCALATING)

INCIDENT = Machine(
    name="incident",
    doc="One interruption of the training and what was done about it.",
    states=IncidentPhase,
    initial=I.OPEN,
    finals=(I.RESOLVED, I.EXHAUSTED),
    table=(
        *rows("policy.considered/take", (I.OPEN, I.DIAGNOSING, I.ESCALATING), I.ACTING),
        Row("departure.deferred", I.ACTING, I.DEFERRED),
        Row("departure.begun", I.DEFERRED, I.ACTING),
        *rows("incident.rediagnosed/worse", _CONSIDERED, I.DIAGNOSING),
        Row("round.started", I.ACTING, I.VERIFYING),
        Row("plan.applied/verify", I.ACTING, I.VERIFYING),
        Row("incident.continued", I.ACTING, I.ESCALATING),
        *rows("incident.escalated", (I.ACTING, I.DEFERRED, I.VERIFYING), I.ESCALATING),
        *rows("incident.resolved", (I.OPEN, I.ACTING, I.DEFERRED, I.VERIFYING), I.RESOLVED),
        *rows("incident.exhausted", (I.OPEN, I.DIAGNOSING, I.ESCALATING), I.EXHAUSTED),
    ),
    ignored=(
        Ignored("policy.considered/pass", (I.OPEN, I.DIAGNOSING, I.ESCALATING), "a verdict for the record"),
        Ignored(
            "incident.rediagnosed/detail",
            _CONSIDERED,
            "the reading was amended without changing what to do",
        ),
        Ignored("plan.applied/other", (I.ACTING,), "what follows says it: it goes on, or is resolved"),
    ),
)
