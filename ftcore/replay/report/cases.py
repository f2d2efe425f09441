"""The incidents of a report: a row for each, and a page for the newest and for the most expensive ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ftcore.faults.failure import Failure
from ftcore.faults.taxonomy import ClassFacts, FaultClass, facts_of, title_of
from ftcore.ids import SECOND
from ftcore.replay.accounts import GoodputReport, IncidentCost
from ftcore.replay.explain import Incident
from ftcore.replay.incident_text import again_lines, cost_text, done_text, failures_title, folded_answers, to_do_lines
from ftcore.replay.outlook import Outlook, outlook
from ftcore.replay.report.limits import INCIDENTS_MAX, PAGES_MAX
from ftcore.replay.report.text import line, several_lines
from ftcore.replay.report.trees import Trees
from ftcore.states.model import JobState
from ftcore.wording import utc

FAILURES_MAX = 20
"""Failures on one page; the others are counted."""

POLICIES_MAX = 60
NODES_NAMED_MAX = 64


def facts(incident: Incident) -> ClassFacts | None:
    """What the taxonomy knows of its class; None: the class is of a newer ftcore."""
    try:
        return facts_of(FaultClass(incident.cls), incident.detail)
    except ValueError:
        return None


def rows(incidents: Sequence[Incident], costs: Mapping[str, IncidentCost], begin: int) -> list[dict[str, Any]]:
    """A short row for each of the newest incidents, oldest first; times in seconds since ``begin`` (nanoseconds)."""
    return [_row(incident, costs.get(incident.id), begin) for incident in incidents[-INCIDENTS_MAX:]]


def _row(incident: Incident, cost: IncidentCost | None, begin: int) -> dict[str, Any]:
    return {
        "id": incident.id,
        "kind": incident.kind,
        "class": title_of(incident.cls, incident.detail),
        "what": line(incident.summary),
        "opened": round((incident.opened - begin) / SECOND, 3),
        "closed": None if incident.closed is None else round((incident.closed - begin) / SECOND, 3),
        "by": incident.resolved_by,
        "state": incident.state,
        "ended_job": incident.job_ended,
        "total_s": incident.phases.total,
        "cost_s": cost.total_s if cost is not None else 0.0,
        "gpu_s": cost.gpu_s if cost is not None else 0.0,
        "steps_lost": incident.steps_lost,
        "nodes": [line(node) for node in incident.nodes[:NODES_NAMED_MAX]],
        "root": None if incident.root.node is None else line(incident.root.node),
    }


def pages(
    incidents: Sequence[Incident], goodput: GoodputReport, state: JobState, trees: Trees, begin: int
) -> dict[str, dict[str, Any]]:
    """A page for each of the newest incidents and of the most expensive ones, by id.

    Args:
        incidents: all of the log.
        goodput: what each cost, and when the job ended.
        state: the folded state at the end of the log.
        trees: what led to what.
        begin: of the log, nanoseconds since the epoch.
    """
    costs = {cost.id: cost for cost in goodput.incidents}
    newest = incidents[-PAGES_MAX // 2 :]
    older = incidents[-INCIDENTS_MAX : -PAGES_MAX // 2]
    worst = sorted(older, key=lambda each: -costs[each.id].total_s if each.id in costs else 0.0)[: PAGES_MAX // 2]
    found = {}
    for each in [*worst, *newest]:
        expected = outlook(each, incidents, state, goodput.end)
        found[each.id] = _page(each, costs.get(each.id), expected, begin, state) | {"tree": trees.of(each.id)}
    return found


def _page(
    incident: Incident, cost: IncidentCost | None, expected: Outlook | None, begin: int, state: JobState
) -> dict[str, Any]:
    known = facts(incident)
    failures = incident.failures
    phases = {name: took for name, took in attrs.asdict(incident.phases).items() if took is not None}
    answers = folded_answers(incident.policies)
    return {
        "class": incident.cls,
        "detail": line(incident.detail),
        "meaning": known.meaning if known is not None else "",
        "done": line(done_text(incident, state), 1000),
        "cost": cost_text(incident, cost, state),
        "again": [line(each) for each in again_lines(expected, incident)] if expected is not None else [],
        "to_do": [line(each, 1000) for each in to_do_lines(expected)] if expected is not None else [],
        "opened": utc(incident.opened),
        "closed": None if incident.closed is None else utc(incident.closed),
        "root_rank": incident.root.rank,
        "ranks": list(incident.ranks[:NODES_NAMED_MAX]),
        "rank_count": len(incident.ranks),
        "run": incident.run,
        "revisions": incident.revisions,
        "outcome": incident.outcome,
        "in_place": incident.in_place,
        "paused_s": incident.paused_s,
        "policies": [(line(name), verdict, line(reason, 1000)) for name, verdict, reason in answers[:POLICIES_MAX]],
        "policy_count": len(answers),
        "phases": phases,
        "uses": cost.seconds if cost is not None else {},
        "timeline": [(step.seq, round(step.after_s, 3), line(step.what, 1000)) for step in incident.timeline],
        "failures": [_failure(each, begin) for each in failures[:FAILURES_MAX]],
        "failures_title": failures_title(incident),
        "failure_count": len(failures),
        "ended_early": [(line(each.node or ""), each.rank) for each in incident.ended_early[:NODES_NAMED_MAX]],
        "first_seq": incident.first_seq,
        "last_seq": incident.last_seq,
    }


def _failure(failure: Failure, begin: int) -> dict[str, Any]:
    last = failure.last[0] if failure.last else None
    return {
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "node": line(failure.node),
        "restart": failure.restart,
        "exitcode": failure.exitcode,
        "message": several_lines(failure.message or "", 2000),
        "traceback": several_lines(failure.py_callstack or ""),
        "time": utc(failure.time),
        "at": round((failure.time - begin) / SECOND, 3),
        "seq": failure.seq,
        "last_step": None if last is None else last.step,
        "last_ago_ms": None if last is None else last.ago_ms,
    }
