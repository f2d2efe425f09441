"""What policies share of seeing: who lives, who is gone, who is to blame, what a world can be made of.

Questions about the folded state, each answered by a pure function. House rule: a node is blamed only by what the
evidence says of it: its own agent is gone, the class of the fault is one of machines, or faults come back to it and not
to others. A healthy node that is replaced costs more than a bad one that is found out at the next fault.
"""

import re
from collections.abc import Collection
from itertools import dropwhile
from typing import Annotated, Protocol

from ftcore.events.policy import ChainEntry
from ftcore.faults.taxonomy import UNREADABLE, ClassFacts, FaultClass, facts_of
from ftcore.ids import seconds
from ftcore.policies.base import Ability
from ftcore.policies.budget import faults_of
from ftcore.policies.options import number, says
from ftcore.policies.traits import Trait, having, options_of
from ftcore.states.faultkey import is_cut
from ftcore.states.health import wanted
from ftcore.states.model import IncidentState, JobState, Report
from ftcore.states.node import HOLDING, OUTGOING, NodePhase
from ftcore.states.revisions import READY_FIRST, follows
from ftcore.states.worker import WorkerPhase
from ftcore.states.world import usable

_READING = re.compile(r"\(reading (.+)\)$", re.MULTILINE)
"""How a worker's error file names the file that could not be read (``runtime/warm/run.py``)."""

GONE_REPORTS = ("node.lost", "node.left", "node.joined")
"""Types of reports that say that a node's agent is gone."""


Classes = Annotated[tuple[FaultClass, ...], says("Classes of faults for which the node at fault is left out.")]
NodeFaults = Annotated[
    int,
    number(
        "A node that was the culprit this often in `window`, and more often than all others together, is left out, "
        "whatever the class; 0: never."
    ),
]
"""Options of every policy that leaves nodes out."""


class Blame(Protocol):
    """Options that say when a node is left out: for classes of faults, or as ``keeps_failing`` says."""

    classes: tuple[FaultClass, ...]
    node_faults: int
    window: float


def asked_by(incident: IncidentState, job: JobState) -> str:
    """Who asked for what the incident is about, and why, in one line."""
    request = job.stop if incident.fault.detail == "stop" and job.stop is not None else job.request
    if request is None:
        return incident.fault.summary
    why = f": {request.why}" if request.why else ""
    return f"{request.who} asked for it{why}"


def reports(incident: IncidentState, job: JobState) -> list[Report]:
    """The reports of the round that the incident hit."""
    return [report for report in job.reports if report.round >= incident.round]


def root_report(incident: IncidentState, job: JobState) -> Report | None:
    """The report that shows the cause, if it is still kept."""
    return next((report for report in job.reports if report.seq == incident.fault.root), None)


def kind_of(incident: IncidentState, job: JobState) -> str:
    """What was observed, as ``loss-spike``: by the report that shows the cause, else by the fault's detail."""
    root = root_report(incident, job)
    return root.kind if root is not None and root.kind else incident.fault.detail


def in_a_row(incident: IncidentState, job: JobState) -> int:
    """How often the same fault came in a row, this time included; 1 for what is no fault."""
    return job.repeat.count if incident.kind == "fault" else 1


def class_of(incident: IncidentState) -> FaultClass:
    """The fault's class; ``unknown`` for one that this version does not know."""
    try:
        return FaultClass(incident.fault.cls)
    except ValueError:
        return FaultClass.UNKNOWN


def facts(incident: IncidentState) -> ClassFacts:
    """What is known of the fault."""
    return facts_of(class_of(incident), incident.fault.detail, incident.fault.step)


def unreadable(incident: IncidentState) -> bool:
    """Whether the script cannot read a file, as a checkpoint, that it needs before its first step."""
    return facts(incident) is UNREADABLE


def unreadable_file(incident: IncidentState, job: JobState) -> str:
    """Which file that is, for people: as the worker said it, else the newest checkpoint that the script told of."""
    for report in reversed(reports(incident, job)):
        found = _READING.search(report.message)
        if found is not None:
            return found[1]
    return f"the checkpoint of step {job.checkpoints[-1]}" if job.checkpoints else "a checkpoint"


def culprit(incident: IncidentState) -> str:
    """The node named first by the fault; empty if it names none."""
    return incident.fault.nodes[0] if incident.fault.nodes else ""


def is_alive(job: JobState, node: str) -> bool:
    """Whether the node's newest agent lives."""
    found = job.nodes.get(node)
    return found is not None and found.alive


def is_member(job: JobState, node: str) -> bool:
    """Whether the node has a place in the newest world."""
    return job.world is not None and job.world.seat(node) is not None


def members(job: JobState) -> int:
    """Nodes of the newest world; 0 if none was formed in this run."""
    return len(job.world.members) if job.world is not None else 0


def everyone_lives(job: JobState) -> bool:
    """Every member of the newest world is there with all its workers."""
    there = job.count(NodePhase.RUNNING, NodePhase.PAUSED)
    return job.world is not None and job.world.started and there == len(job.world.members)


def anyone_lives(job: JobState) -> bool:
    """Some member of the newest world may still hold a worker with its state."""
    holding = (NodePhase.RUNNING, NodePhase.PAUSED, NodePhase.PARKED, NodePhase.FAULTED)
    return job.world is not None and job.count(*holding) > 0


def living_ranks(job: JobState) -> frozenset[int]:
    """Global ranks of the newest world whose workers may still hold their state."""
    held = (WorkerPhase.RUNNING, WorkerPhase.PARKED)
    found: set[int] = set()
    for member in job.world.members if job.world is not None else ():
        node = job.current(member.node, member.incarnation)
        if node is not None and node.phase in HOLDING:
            found |= {member.base_rank + place for place, phase in enumerate(node.workers) if phase in held}
    return frozenset(found)


def a_worker_ended(incident: IncidentState, job: JobState) -> bool:
    """A worker of the round ended by itself."""
    return any(report.type == "worker.failed" for report in reports(incident, job))


def interrupted(incident: IncidentState, job: JobState) -> bool:
    """Whether a plan that failed has interrupted the training: a wish or a warning is as grave as a fault then."""
    return bool(incident.tried) and (job.streak > 0 or not everyone_lives(job))


def gone(incident: IncidentState, job: JobState) -> tuple[str, ...]:
    """Members whose agent is gone, the culprit first."""
    told = [report.node for report in reports(incident, job) if report.type in GONE_REPORTS]
    named = [node for node in incident.fault.nodes if node in job.nodes]
    return tuple(node for node in dict.fromkeys([*named, *told]) if not is_alive(job, node))


def keeps_failing(incident: IncidentState, job: JobState, times: int, window_s: float) -> bool:
    """Whether faults come back to the culprit's node, and not to the others as well.

    Faults of the script and of the data count for no node: they follow the job wherever it runs.

    Args:
        incident: the open incident.
        job: the folded state.
        times: faults of the node that are too many, this one included; 0: never.
        window_s: seconds in which they are counted.
    """
    node = culprit(incident)
    if times <= 0 or not node or facts(incident).at_fault not in ("process", "node"):
        return False
    own = faults_of(job, node, window_s)
    return own >= times and 2 * own > sum(faults_of(job, other, window_s) for other in job.node_faults)


def unfit(incident: IncidentState, job: JobState, options: Blame) -> tuple[str, ...]:
    """The culprit's node, if it lives but must not take part in the next round; with the reasons that options give.

    Args:
        incident: the open incident.
        job: the folded state.
        options: ``classes`` (of faults that are the machine's), ``node_faults`` and ``window`` (see ``keeps_failing``).
    """
    node = culprit(incident)
    if incident.kind != "fault" or not is_alive(job, node) or not is_member(job, node):
        return ()
    machine = incident.fault.cls in options.classes or must_part(incident, job)
    return (node,) if machine or keeps_failing(incident, job, options.node_faults, options.window) else ()


def must_part(incident: IncidentState, job: JobState) -> bool:
    """Whether one of two nodes that cannot reach each other has to leave: no restart helps while both take part.

    If they are checked before the next round, the check says first whether one of them is broken.
    """
    if not is_cut(incident.fault):
        return False
    root = root_report(incident, job)
    checked = root is not None and root.source == "health"
    return checked or job.repeat.count > 1 or not _is_checked_next(incident, job)


def _is_checked_next(incident: IncidentState, job: JobState) -> bool:
    """Whether a restart that is still to be asked for would check the nodes at fault."""
    restarts = [each for each in having(_meant(job, incident), Trait.RESTARTS) if each.policy not in incident.asked]
    nodes = [job.nodes[name] for name in incident.fault.nodes if name in job.nodes]
    able = all(node.checks and wanted(job.declared.health, node.accelerators) for node in nodes)
    return able and job.can(Ability.CHECK) and any(options_of(entry).check != "never" for entry in restarts)


def crash_loop(incident: IncidentState, job: JobState, options: Blame) -> tuple[str, ...]:
    """The culprit's node, if faults come back to it, whether its agent lives now or will come back in a moment.

    Args:
        incident: the open incident.
        job: the folded state.
        options: ``node_faults`` and ``window`` (see ``keeps_failing``).
    """
    node = culprit(incident)
    if incident.kind != "fault" or not is_member(job, node):
        return ()
    return (node,) if keeps_failing(incident, job, options.node_faults, options.window) else ()


def wished_node(incident: IncidentState, job: JobState) -> str:
    """The node that somebody asked to drain or to evict; empty if nobody did."""
    if incident.kind != "request" or incident.fault.detail not in ("drain", "evict"):
        return ""
    if follows(job, READY_FIRST):
        return culprit(incident)  # somebody may have asked for another one since
    return job.request.node if job.request is not None and job.request.node else culprit(incident)


def left(job: JobState, without: Collection[str] = ()) -> int:
    """Nodes that live and could be in the next world, without some of them."""
    taken_off = (job.nodes[name] for name in without if name in job.nodes)
    return job.available() - sum(1 for node in taken_off if node.alive and node.phase not in OUTGOING)


def room(job: JobState, without: Collection[str] = ()) -> int:
    """Nodes of the largest world that could be formed now without some nodes; 0 if none."""
    spec = job.spec
    if spec is None:
        return 0
    return usable(left(job, without), spec)


def hit_at_once(incident: IncidentState, job: JobState, window_s: float) -> tuple[str, ...]:
    """Nodes that are gone in this incident or were at fault in the last ``window_s`` seconds."""
    since = job.time - seconds(window_s)
    lately = [node for node, times in job.node_faults.items() if times and times[-1] > since]
    return tuple(dict.fromkeys([*gone(incident, job), *lately]))


def entries_below(job: JobState, policy: str, incident: IncidentState) -> list[ChainEntry]:
    """The entries below a policy that are still to be asked about the incident, in order.

    Args:
        job: the folded state, with the chain in force.
        policy: the one that is being asked.
        incident: the open incident.
    """
    below = dropwhile(lambda entry: entry.policy != policy, _meant(job, incident))
    return [entry for entry in below if entry.policy != policy and entry.policy not in incident.asked]


def _meant(job: JobState, incident: IncidentState) -> list[ChainEntry]:
    """The entries that are asked about the incident's class at all."""
    return [entry for entry in job.chain if entry.is_for(incident.fault.cls)]
