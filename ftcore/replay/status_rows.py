"""Rows of a job's status, as ``ftctl status`` and the live views show them: the same words everywhere.

A *tone* is the meaning of a colour: ``good``, ``warn``, ``bad``, ``quiet``, or empty. Views choose the colours, and
never show a meaning by colour alone.
"""

from collections.abc import Iterator

import attrs

from ftcore.replay.status import JobStatus
from ftcore.wording import about, deferred_departure, format_elapsed, listed, plural, reason_suffix, utc

STATE_TONES = {
    "running": "good",
    "succeeded": "good",
    "recovering": "warn",
    "checking": "warn",
    "paused": "warn",
    "quarantined": "bad",
    "draining": "warn",
    "stopped": "warn",
    "stuck": "bad",
    "failed": "bad",
    "faulted": "bad",
    "lost": "bad",
}
"""By state of a job or of a node; other states have none."""

UNKNOWN = "not known"
"""State of a job of which nothing tells whether it still runs."""

QUARANTINED_SHOWN = 40
"""Quarantined nodes named in a row."""


@attrs.frozen
class StatusRow:
    """One row.

    Args:
        name: what it is about, as ``world``.
        text: one line; it may hold text of workers and people, so a view must not interpret it.
        tone: see above.
    """

    name: str
    text: str
    tone: str = ""


def is_unknown(job: JobStatus) -> bool:
    """Whether the log was made of files that do not show how the job ended."""
    return job.imported and job.exit_code is None


def state_of(job: JobStatus) -> tuple[str, str]:
    """The job's state in a word or two, and its tone."""
    return (UNKNOWN, "quiet") if is_unknown(job) else (job.state, STATE_TONES.get(job.state, ""))


def first_rows(job: JobStatus) -> Iterator[StatusRow]:
    """Yield what the job is, how it is, what it waits for, and its world."""
    yield StatusRow("job", f"{job.job}, run {job.run}")
    if is_unknown(job):
        yield StatusRow("state", f"{UNKNOWN}: the imported files end while the job was {job.state}", "quiet")
    else:
        yield StatusRow("state", job.state, STATE_TONES.get(job.state, ""))
    if job.reason:
        yield StatusRow("reason", job.reason)
    if job.standstill is not None:
        since = utc(job.standstill.since)
        text = f"since {since[:10]} {since[11:23]} UTC: {job.standstill.message}"
        yield StatusRow("no progress", f"{text}; workers keep running", "warn")
        if job.standstill.stacks:
            yield StatusRow("stacks", job.standstill.stacks)
    yield from _request_rows(job)
    if job.world is not None:
        members = f"{plural(job.world.size, 'rank')} on {plural(job.world.node_count, 'node')}"
        yield StatusRow("world", f"round {job.world.round}: {members}")


def _request_rows(job: JobStatus) -> Iterator[StatusRow]:
    """Rows about operators' requests and quarantined nodes."""
    if job.held:
        yield StatusRow("held", "no recovery begins until the job is resumed", "warn")
    by = f", paused by {job.paused_for.who}{reason_suffix(job.paused_for.why)}" if job.paused_for is not None else ""
    if job.paused and job.state != "paused":
        text = f"training will wait again after the incident, unless the job is resumed{by}"
        yield StatusRow("paused", text, "warn")
    elif job.paused:
        yield StatusRow("paused", f"training waits at a step boundary{by}", "warn")
    if job.request is not None:
        request = job.request
        node = f" {request.node}" if request.node else ""
        text = f"{request.command}{node} by {request.who}{reason_suffix(request.why)}"
        yield StatusRow("request", text, "warn")
    if job.leaving:
        yield StatusRow("waits", deferred_departure(job.leaving), "warn")
    quarantined = [f"{node} ({about(node, reason)})" for node, reason in job.quarantined.items()]
    if quarantined:
        yield StatusRow("quarantined", listed(quarantined, QUARANTINED_SHOWN), "warn")


def step_text(step: int, absolute: bool, age_s: float | None) -> str:
    """A completed step.

    Args:
        step: the step.
        absolute: it counts from the start of the training, not of the round.
        age_s: how long ago it became known, in seconds; None: not known, or of no interest.
    """
    return f"{step}{'' if absolute else ' of this round'}{age_text(age_s)}"


def age_text(age_s: float | None) -> str:
    """How long ago something became known, in brackets; empty if not known."""
    if age_s is None:
        return ""
    age_s = max(0.0, age_s)
    return f" ({age_s:.0f} s ago)" if age_s < 2 * 60 else f" ({format_elapsed(age_s)} ago)"


def nan_text(job: JobStatus) -> str:
    """The state of a loss that is not finite; empty if it is finite, or not known."""
    return f"NaN or infinite since step {job.nan_since}" if job.nan_since is not None else ""


def checkpoint_text(job: JobStatus) -> str:
    """The newest checkpoint; empty if there is none."""
    return f"of step {job.checkpoint}" if job.checkpoint is not None else ""


def rate_text(job: JobStatus) -> str:
    """The factor for the learning rate; empty if it is the script's own."""
    return f"{job.lr_factor:.4g} of the script's: a policy has lowered it" if job.lr_factor != 1.0 else ""


def incidents_text(job: JobStatus) -> str:
    """How many incidents there were, and which one is open."""
    return f"{job.incident_count}, open: {job.incident or 'none'}"


def master_text(job: JobStatus, alive: bool | None) -> str:
    """The last elected master; empty before the first, and for an import, which has none.

    Args:
        job: the status.
        alive: whether it holds its lease; None: not known.
    """
    if job.master is None or job.imported:
        return ""
    ended = job.state in ("succeeded", "failed", "stopped")
    life = "" if alive is None else ", alive" if alive else ", ended" if ended else ", not alive"
    return f"{job.master.host} pid {job.master.pid} at {job.master.address}, term {job.term}{life}"
