"""``alert``: tell people, and go on with the chain at once.

Where it stands in the chain says what it tells of: above all others, of every fault; below the quick remedies, only of
what they passed on. It never waits for the message to be sent, and never takes part in a recovery.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.ids import SECOND
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import spent
from ftcore.policies.options import Options, Text, number, says, span
from ftcore.policies.situation import asked_by, class_of, culprit, in_a_row
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration


class AlertOptions(Options):
    """What ``alert`` may be told."""

    to: Annotated[
        tuple[Text, ...],
        says(
            "Whom to tell: `env:NAME` or `file:/PATH`, which hold URLs of apprise and are read when a message is "
            "sent, or such URLs themselves, which then stand in the log; nobody: it passes.",
            words="targets",
        ),
    ] = ()
    on: Annotated[tuple[FaultClass, ...], says("Classes of faults to tell of; none named: all.")] = ()
    requests: Annotated[bool, says("Tell of what people asked for as well.")] = False
    on_end: Annotated[
        Literal["failure", "always", "never"],
        says("Which end of the job is told of, whatever `on`, `every` and `max_alerts` say."),
    ] = "failure"
    severity: Annotated[Literal["info", "warning", "critical"], says("How grave it is called.")] = "warning"
    every: Annotated[float, span("Time in which the same fault, and any warning, is not told of again.")] = 600.0
    max_alerts: Annotated[int, number("Messages in `window`.", minimum=1, maximum=1000)] = 12
    window: Annotated[float, span("The time over which messages are counted.", minimum=1)] = 3600.0


@declares(Trait.ALERTS, Trait.CONTINUES, budget="max_alerts")
class Alert:
    """Tell people of an incident."""

    name: ClassVar[str] = "alert"
    doc: ClassVar[str] = "Tell people of the incident; the next entry is asked at once."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault or a warning whose class is in `on`; a request only with `requests`",
        "passes if `to` names nobody",
        "passes the same fault come again, and any warning, within `every` of the last message",
        "passes what is beyond `max_alerts` in `window`",
        "beside all this, tells once how the job ended, as `on_end` says; that it has failed is `critical`",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning", "request")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = AlertOptions

    def considers(self, incident: IncidentState, job: JobState, options: AlertOptions) -> Verdict:
        """Take what people want to know, not more often than they want to."""
        if not options.to:
            return Pass(reason="nobody is named to be told")
        if incident.kind == "request" and not options.requests:
            return Pass(reason="requests are not told of")
        if incident.kind != "request" and options.on and incident.fault.cls not in options.on:
            return Pass(reason=f"{incident.fault.cls} is not told of")
        last = max(job.attempts.get(self.name, ()), default=None)
        if last is not None and (incident.kind == "warning" or in_a_row(incident, job) > 1):
            ago = (job.time - last) / SECOND
            if ago < options.every:
                return Pass(reason=f"nothing new, and people were told {format_duration(round(ago))} ago")
        why = spent(job, self.name, options.max_alerts, options.window, "messages")
        if why:
            return Pass(reason=why)
        return Take(
            plan=PlanKind.TELL,
            reason=f"tells {len(options.to)} of it",
            grace_s=0.0,
            terms=Terms(alert=_message(incident, job), severity=options.severity),
        )


def _message(incident: IncidentState, job: JobState) -> str:
    fault = incident.fault
    if incident.kind == "request":
        return f"{job.job}: {fault.detail}: {asked_by(incident, job)}"
    lines = [f"{job.job}: {fault.summary} ({fault.cls})"]
    where = culprit(incident)
    step = f"after step {fault.step}" if fault.step is not None else "before any step"
    lines.append(f"incident {incident.id}, {step}" + (f", on {where}" if where else ""))
    if in_a_row(incident, job) > 1:
        lines.append(f"the same fault came {in_a_row(incident, job)} times in a row")
    if incident.tried:
        lines.append(f"tried in vain: {', '.join(dict.fromkeys(incident.tried))}")
    lines.append(f"advice: {CLASSES[class_of(incident)].advice}")
    return "\n".join(lines)
