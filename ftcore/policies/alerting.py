"""Alerts about what is no incident, so that no chain is asked: the end of the job, and workers that stand still.

A failure bypasses everything that keeps messages few: it comes once, and whoever misses it believes that the job runs.
"""

from ftcore.events.job import JobFinished
from ftcore.events.policy import AlertRaised, ChainEntry
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.traits import Trait, having, options_of
from ftcore.states.model import JobState

_ENDS = {"failed": "has failed", "stopped": "was stopped", "succeeded": "has succeeded"}


def word_of_end(job: JobState, finished: JobFinished) -> AlertRaised | None:
    """What people are told of the end of the job; None if the chain names nobody who wants to hear of it.

    Args:
        job: the folded state before its end.
        finished: how it ends.
    """
    failed = finished.outcome == "failed"
    wanted = ("failure", "always") if failed else ("always",)
    # an entry of a log from before there was this option does not have it: at that time nobody was told
    if not any(entry.options.get("on_end") in wanted for entry in _telling(job)):
        return None
    step = f"after step {job.step}" if job.step is not None else "before any step"
    lines = (
        f"{job.job} {_ENDS.get(finished.outcome, 'has ended')}: {finished.reason}",
        f"{step}, exit code {finished.exit_code}",
        f"the whole story: ftctl explain --job {job.job}",
    )
    return AlertRaised(
        severity="critical" if failed else "info", title=f"{job.job}: {finished.outcome}", text="\n".join(lines)
    )


def word_of_standstill(job: JobState, message: str, stacks: str) -> AlertRaised | None:
    """What people are told while no step is completed; None if the chain names nobody who wants to hear of hangs."""
    wanted = [each for each in map(options_of, _telling(job)) if not each.on or FaultClass.HANG in each.on]
    if not wanted:
        return None
    step = f"after step {job.step}" if job.step is not None else "before any step"
    lines = (
        f"{job.job}: {message}",
        f"{step}; workers are left alone, it may be an evaluation, a save or a download",
        f"what they do now: ftctl status --job {job.job}",
        *([f"their stacks: {stacks}"] if stacks else []),
    )
    return AlertRaised(severity=wanted[0].severity, title=f"{job.job}: no step is completed", text="\n".join(lines))


def _telling(job: JobState) -> list[ChainEntry]:
    """The entries that send messages to somebody."""
    return [entry for entry in having(job.chain, Trait.ALERTS) if options_of(entry).to]
