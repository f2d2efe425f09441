"""Alerts that do not come from an incident: the end of the job, and workers that make no progress.

The alert about a failed job ignores rate limits: it is sent once, and without it users believe that the job still runs.
"""

from ftcore.events.job import JobFinished
from ftcore.events.policy import AlertRaised, ChainEntry
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.traits import Trait, having, options_of
from ftcore.states.model import JobState

_ENDS = {"failed": "failed", "stopped": "was stopped", "succeeded": "succeeded"}


def end_alert(job: JobState, finished: JobFinished) -> AlertRaised | None:
    """The alert about the end of the job; None if no ``alert`` entry of the chain asks for it.

    Args:
        job: the folded state before the job ends.
        finished: the outcome.
    """
    failed = finished.outcome == "failed"
    wanted = ("failure", "always") if failed else ("always",)
    # Entries in logs older than this option do not have it; such jobs sent no alert.
    if not any(entry.options.get("on_end") in wanted for entry in _alert_entries(job)):
        return None
    step = f"after step {job.training.step}" if job.training.step is not None else "before any step"
    lines = (
        f"{job.job} {_ENDS.get(finished.outcome, 'ended')}: {finished.reason}",
        f"{step}, exit code {finished.exit_code}",
        f"details: ftctl explain --job {job.job}",
    )
    return AlertRaised(
        severity="critical" if failed else "info", title=f"{job.job}: {finished.outcome}", text="\n".join(lines)
    )


def standstill_alert(job: JobState, message: str, stacks: str) -> AlertRaised | None:
    """The alert about workers that complete no step; None if no ``alert`` entry of the chain covers hangs."""
    wanted = [each for each in map(options_of, _alert_entries(job)) if not each.on or FaultClass.HANG in each.on]
    if not wanted:
        return None
    step = f"after step {job.training.step}" if job.training.step is not None else "before any step"
    lines = (
        f"{job.job}: {message}",
        f"{step}; the workers are not stopped: an evaluation, a save or a download may be running",
        f"current state: ftctl status --job {job.job}",
        *([f"stacks: {stacks}"] if stacks else []),
    )
    return AlertRaised(severity=wanted[0].severity, title=f"{job.job}: no step completed", text="\n".join(lines))


def _alert_entries(job: JobState) -> list[ChainEntry]:
    """The entries that send alerts and have a target."""
    return [entry for entry in having(job.policy.chain, Trait.ALERTS) if options_of(entry).to]
