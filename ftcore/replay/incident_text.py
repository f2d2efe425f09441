"""What is said of an incident in words: ``ftctl explain`` and the report share these lines.

House rules: plain text of the job's own words; whoever shows it makes it safe for its medium.
"""

import re
from collections.abc import Sequence

from ftcore.policies.abilities import LACKS
from ftcore.replay.accounts import IncidentCost
from ftcore.replay.clocks import NodeClock
from ftcore.replay.explain import Asked, Incident
from ftcore.replay.outlook import Outlook
from ftcore.states.model import JobState
from ftcore.wording import format_duration, format_elapsed, format_gpu_time, plural, utc

NEEDED = re.compile(f"{LACKS}`([^`]*)`")
"""The ability in the reason of a policy that passes because it is missing."""

FILES_END = "not known: the imported files end here"
"""What is said of what followed the last line of an import."""

CLOCKS_SHOWN = 3
"""Clocks that disagree that are named."""


def is_cut_off(incident: Incident, state: JobState) -> bool:
    """Whether the files of an import end while the incident is open, so that nothing tells what followed."""
    return state.end_is_unknown and incident.closed is None


def failures_title(incident: Incident) -> str:
    """Title of the failures, which begin with the root cause: the times of an import may not be in this order."""
    times = [failure.time for failure in incident.failures]
    return f"Failures, {'the first one first' if times == sorted(times) else 'the root cause first'}"


def done_text(incident: Incident, state: JobState) -> str:
    """The plans that were taken, the last one with its reason.

    Args:
        incident: the incident.
        state: the folded state at the end of the log.
    """
    taken = [asked for asked in incident.policies if asked.verdict == "take"]
    if not taken and is_cut_off(incident, state):
        return FILES_END
    if not taken:
        return "nothing: no policy took it" if incident.closed is not None else "nothing yet"
    before = f"{', '.join(asked.name for asked in taken[:-1])}; then " if len(taken) > 1 else ""
    text = f"{before}{taken[-1].name}: {taken[-1].reason}"
    return f"{text}; paused {_paused(incident)}" if incident.outcome == "paused" else text


def cost_text(incident: Incident, cost: IncidentCost | None, state: JobState) -> str:
    """What it cost: time, the uses that took most of it, GPU-seconds, steps.

    Args:
        incident: the incident.
        cost: its cost; None: it took no time.
        state: the folded state at the end of the log.
    """
    lost = _lost(incident)
    steps = {"-": "no step", "not known": "steps computed again: not known"}.get(lost, f"{lost} computed again")
    if cost is None:
        return FILES_END if is_cut_off(incident, state) else "no training time"
    largest = sorted(cost.seconds.items(), key=lambda item: -item[1])[:3]
    spent = ", ".join(f"{use} {format_elapsed(seconds)}" for use, seconds in largest)
    return f"{format_elapsed(cost.total_s)} ({spent}), {format_gpu_time(cost.gpu_s)}; {steps}"


def again_lines(expected: Outlook, incident: Incident) -> list[str]:
    """Whether it will come back: how often it came, and what is left of the budget."""
    noun = incident.kind
    count = f"{plural(expected.of_class, noun)} of this class in the log, {expected.of_class_day} in the last 24 h"
    node = f"; {plural(expected.at_node, 'fault')} began at {incident.root.node}" if expected.at_node else ""
    lines = [f"{count}{node}"]
    if expected.repeats:
        lines.append("a restart seldom helps: a fault of this class usually occurs again at the same step")
    if expected.budget is not None:
        budget = expected.budget
        left = max(0, budget.limit - budget.used)
        window = f" in {format_duration(budget.window_s)}" if budget.window_s else ""
        lines.append(f"{budget.policy}: {left} of {plural(budget.limit, 'attempt')}{window} left")
    return lines


def to_do_lines(expected: Outlook) -> list[str]:
    """What to do now: advice, usual causes, settings."""
    lines = [expected.advice, f"usual causes: {expected.usual_causes}"]
    return [*lines, f"settings: {expected.setting}"] if expected.setting else lines


def _lost(incident: Incident) -> str:
    if incident.steps_lost is None and incident.kind != "fault" and incident.phases.rendezvous is None:
        return "-"  # no worker was stopped
    return "not known" if incident.steps_lost is None else plural(incident.steps_lost, "step")


def _paused(incident: Incident) -> str:
    assert incident.closed is not None
    since = f"from {utc(incident.closed)[:23].replace('T', ' ')} UTC"
    return f"{since}, not resumed yet" if incident.paused_s is None else f"{format_elapsed(incident.paused_s)}, {since}"


def folded_answers(policies: Sequence[Asked]) -> list[tuple[str, str, str]]:
    """A row for each answer; policies that lack an ability share one row, at the place of the first."""
    unable = list(dict.fromkeys(asked.name for asked in policies if _is_unable(asked)))
    rows: list[tuple[str, str, str]] = []
    folded = False
    for asked in policies:
        if len(unable) < 2 or not _is_unable(asked):
            rows.append((asked.name, asked.verdict, asked.reason))
        elif not folded:
            folded = True
            reasons = {asked.name: asked.reason for asked in policies if _is_unable(asked)}
            needs = dict.fromkeys(ability for reason in reasons.values() for ability in NEEDED.findall(reason))
            rows.append((f"{len(unable)} policies", "pass", f"{', '.join(unable)}: the job lacks {', '.join(needs)}"))
    return rows


def _is_unable(asked: Asked) -> bool:
    return asked.verdict == "pass" and asked.reason.startswith(f"{LACKS}`")


def clock_lines(clocks: Sequence[NodeClock]) -> list[str]:
    """The clocks of nodes whose own logs have other times."""
    lines = [f"the clock of {each.node} is {_disagreement(each)}" for each in clocks[:CLOCKS_SHOWN]]
    more = len(clocks) - CLOCKS_SHOWN
    if more > 0:
        lines.append(f"the clocks of {plural(more, 'more node')} disagree too; --format json has all")
    return [*lines, "times on this page are the master's, not those of node logs"] if lines else []


def _disagreement(clock: NodeClock) -> str:
    low, high = clock.ahead_min_s, clock.ahead_max_s
    if high is not None and high < 0:
        return f"{format_elapsed(-high)} to {format_elapsed(-low)} behind the master's"
    return f"{format_elapsed(low)} {'or more' if high is None else f'to {format_elapsed(high)}'} ahead of the master's"
