"""``alert``: send an alert, and ask the next entry of the chain at once.

Its position in the chain decides which incidents it reports: at the top, every fault; below the cheap remedies, only
those that they passed. It does not wait until the alert is sent, and takes no part in the recovery.
"""

from typing import Annotated, ClassVar, Literal

from ftcore.events.policy import Terms
from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.ids import SECOND
from ftcore.policies.base import Ability, Pass, PlanKind, Take, Verdict
from ftcore.policies.budget import spent
from ftcore.policies.options import Options, Text, number, says, span
from ftcore.policies.situation import advice, asked_by, class_of, culprit, in_a_row, title
from ftcore.policies.traits import Trait, declares
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, plural


class AlertOptions(Options):
    """Options of ``alert``."""

    to: Annotated[
        tuple[Text, ...],
        says(
            "Targets: `env:NAME` or `file:/PATH`, whose URLs for apprise are read when an alert is sent, or URLs "
            "themselves, which are then stored in the log. If empty, no alert is sent.",
            words="targets",
        ),
    ] = ()
    on: Annotated[tuple[FaultClass, ...], says("Classes of faults that cause an alert; empty: all.")] = ()
    requests: Annotated[bool, says("Send alerts about requests of operators as well.")] = False
    on_end: Annotated[
        Literal["failure", "always", "never"],
        says("Send an alert at the end of the job, independent of `on`, `every` and `max_alerts`."),
    ] = "failure"
    severity: Annotated[Literal["info", "warning", "critical"], says("Severity of the alerts.")] = "warning"
    every: Annotated[
        float, span("Minimum time after an alert before the next one about a repeated fault or a warning.")
    ] = 600.0
    max_alerts: Annotated[int, number("Alerts allowed in `window`.", minimum=1, maximum=1000)] = 12
    window: Annotated[float, span("The time over which alerts are counted.", minimum=1)] = 3600.0


@declares(Trait.ALERTS, Trait.CONTINUES, budget="max_alerts")
class Alert:
    """Send an alert about an incident."""

    name: ClassVar[str] = "alert"
    doc: ClassVar[str] = "Send an alert about the incident; the next entry is asked at once."
    conditions: ClassVar[tuple[str, ...]] = (
        "takes a fault or a warning whose class is in `on`; a request only with `requests`",
        "passes if `to` is empty",
        "passes a repeated fault, and any warning, within `every` of the last alert",
        "passes when `max_alerts` in `window` are spent",
        "in addition, sends one alert at the end of the job, as `on_end` says; severity `critical` if the job failed",
    )
    kinds: ClassVar[tuple[str, ...]] = ("fault", "warning", "request")
    needs: ClassVar[tuple[Ability, ...]] = ()
    options: ClassVar[type[Options]] = AlertOptions

    def considers(self, incident: IncidentState, job: JobState, options: AlertOptions) -> Verdict:
        """Take the incidents that the options select, within the rate limits."""
        if not options.to:
            return Pass(reason="no target in `to`")
        if incident.kind == "request" and not options.requests:
            return Pass(reason="no alerts about requests (`requests` is off)")
        if incident.kind != "request" and options.on and incident.fault.cls not in options.on:
            return Pass(reason=f"no alerts about {incident.fault.cls}: not in `on`")
        last = max(job.history.attempts.get(self.name, ()), default=None)
        if last is not None and (incident.kind == "warning" or in_a_row(incident, job) > 1):
            ago = (job.time - last) / SECOND
            if ago < options.every:
                return Pass(reason=f"nothing new: the last alert was sent {format_duration(round(ago))} ago")
        why = spent(job, self.name, options.max_alerts, options.window, "alerts")
        if why:
            return Pass(reason=why)
        return Take(
            plan=PlanKind.TELL,
            reason=f"sends an alert to {plural(len(options.to), 'target')}",
            grace_s=0.0,
            terms=Terms(alert=_message(incident, job), severity=options.severity),
        )


def _message(incident: IncidentState, job: JobState) -> str:
    fault = incident.fault
    if incident.kind == "request":
        return f"{job.job}: {fault.detail}: {asked_by(incident, job)}"
    lines = [f"{job.job}: {fault.summary} ({title(incident, job)})"]
    where = culprit(incident)
    last = fault.step if fault.step is not None else incident.progress
    step = f"after step {last}" if last is not None else "before any step"
    lines.append(f"incident {incident.id}, {step}" + (f", on {where}" if where else ""))
    if in_a_row(incident, job) > 1:
        lines.append(f"the same fault occurred {in_a_row(incident, job)} times in a row")
    if incident.tried:
        lines.append(f"failed attempts: {', '.join(dict.fromkeys(incident.tried))}")
    lines.append(f"advice: {advice(incident, job, earlier=CLASSES[class_of(incident)])}")
    return "\n".join(lines)
