"""Queries on the folded state for policies: live, lost and faulty nodes, and the possible sizes of a world.

A node is blamed only on evidence: its own agent is lost, the fault's class is a hardware class, or faults recur on it
and not on others. Replacing a healthy node costs more than keeping a bad one until its next fault.
"""

import re
from collections.abc import Collection, Sequence
from itertools import dropwhile
from typing import Annotated, Protocol

from ftcore.events.policy import ChainEntry
from ftcore.faults.taxonomy import UNREADABLE, ClassFacts, FaultClass, facts_of, title_of
from ftcore.ids import seconds
from ftcore.policies.base import Ability
from ftcore.policies.budget import faults_of
from ftcore.policies.options import number, says
from ftcore.policies.traits import Trait, having, options_of
from ftcore.states.disruption import DisruptionState
from ftcore.states.evidence import Report
from ftcore.states.faultkey import is_cut
from ftcore.states.fold.base import WORKERS
from ftcore.states.health import wanted
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import HOLDING, OUTGOING, NodePhase
from ftcore.states.norms import step_of
from ftcore.states.revisions import BY_DETAIL, DISRUPTIONS, HANDOVER, READY_FIRST, STARTED_FIRST, follows
from ftcore.states.worker import WorkerPhase
from ftcore.states.world import usable
from ftcore.wording import listed

_READING = re.compile(r"\(reading (.+)\)$", re.MULTILINE)
"""Matches the unreadable file in the message of a worker's error file (written by ``runtime/warm/run.py``)."""

LOST_REPORTS = ("node.lost", "node.left", "node.joined")
"""Types of reports after which a node's former agent is gone."""


SURVIVED = ("uce", "collective", "norm")
"""Kinds of observations of a worker that then leaves its round by itself, and waits for the next one."""

Classes = Annotated[tuple[FaultClass, ...], says("Classes of faults for which the node at fault is removed.")]
NodeFaults = Annotated[
    int,
    number(
        "Remove a node that was at fault this often in `window`, and more often than all other nodes together, "
        "whatever the class; 0: never."
    ),
]
"""Options of every policy that removes nodes from the world."""


class Blame(Protocol):
    """Options that say when a node is removed: by classes of faults, or by ``keeps_failing``."""

    classes: tuple[FaultClass, ...]
    node_faults: int
    window: float


def asked_by(incident: IncidentState, job: JobState) -> str:
    """Who made the request, and why, in one line."""
    requests = job.requests
    request = requests.stop if incident.fault.detail == "stop" and requests.stop is not None else requests.pending
    if request is None or (follows(job, DISRUPTIONS) and request.seq != incident.fault.root):
        return incident.fault.summary
    why = f": {request.why}" if request.why else ""
    return f"{request.who} asked for it{why}"


def disruption(incident: IncidentState, job: JobState) -> DisruptionState | None:
    """The disruption that an incident is about; None if it is about none, or about one that is over."""
    found = job.evidence.disruptions.values()
    return next((each for each in found if each.seq == incident.fault.root), None)


def reports(incident: IncidentState, job: JobState) -> list[Report]:
    """The reports since the round of the incident."""
    return [report for report in job.evidence.reports if report.round >= incident.round]


def root_report(incident: IncidentState, job: JobState) -> Report | None:
    """The report of the root cause; None if it is no longer kept."""
    return next((report for report in job.evidence.reports if report.seq == incident.fault.root), None)


def kind_of(incident: IncidentState, job: JobState) -> str:
    """The observed kind, such as ``loss-spike``: from the root report, else from the fault's detail."""
    root = root_report(incident, job)
    return root.kind if root is not None and root.kind else incident.fault.detail


def abnormal_step(incident: IncidentState, job: JobState) -> int | None:
    """The number of the step whose values were abnormal; None: not known."""
    root = root_report(incident, job)
    step = incident.fault.step if incident.fault.step is not None else job.training.step
    return step_of(step, root.values if root is not None else {})


def in_a_row(incident: IncidentState, job: JobState) -> int:
    """How often the same fault occurred in a row, including this time; 1 if the incident is not a fault."""
    return job.evidence.repeat.count if incident.kind == "fault" else 1


def class_of(incident: IncidentState) -> FaultClass:
    """The fault's class; ``unknown`` if this version does not have it."""
    try:
        return FaultClass(incident.fault.cls)
    except ValueError:
        return FaultClass.UNKNOWN


def facts(incident: IncidentState) -> ClassFacts:
    """The facts about the fault's class."""
    return facts_of(class_of(incident), incident.fault.detail, incident.fault.step)


def title(incident: IncidentState, job: JobState) -> str:
    """The fault's name in messages; masters before revision 6 wrote its class."""
    fault = incident.fault
    return title_of(fault.cls, fault.detail) if follows(job, BY_DETAIL) else fault.cls


def advice(incident: IncidentState, job: JobState, earlier: ClassFacts) -> str:
    """What an operator should check.

    Args:
        incident: the open incident.
        job: the folded state.
        earlier: the facts whose advice masters before revision 6 gave.
    """
    return (facts(incident) if follows(job, BY_DETAIL) else earlier).advice


def unreadable(incident: IncidentState) -> bool:
    """Whether the script cannot read a file, such as a checkpoint, that it needs before its first step."""
    return facts(incident) is UNREADABLE


def unreadable_file(incident: IncidentState, job: JobState) -> str:
    """The unreadable file for messages: as the worker reported it, else the newest reported checkpoint."""
    for report in reversed(reports(incident, job)):
        found = _READING.search(report.message)
        if found is not None:
            return found[1]
    return f"the checkpoint of step {job.training.checkpoints[-1]}" if job.training.checkpoints else "a checkpoint"


def culprit(incident: IncidentState) -> str:
    """The node at fault: the first one that the fault names; empty if it names none."""
    return incident.fault.nodes[0] if incident.fault.nodes else ""


def is_alive(job: JobState, node: str) -> bool:
    """Whether the node's current agent is alive."""
    found = job.membership.nodes.get(node)
    return found is not None and found.alive


def is_member(job: JobState, node: str) -> bool:
    """Whether the node has a place in the newest world."""
    return job.rounds.world is not None and job.rounds.world.seat(node) is not None


def members(job: JobState) -> int:
    """Nodes of the newest world; 0 if none was formed in this run."""
    return len(job.rounds.world.members) if job.rounds.world is not None else 0


def all_workers_alive(job: JobState) -> bool:
    """Whether every member of the newest world is alive with all its workers."""
    intact = job.membership.count(NodePhase.RUNNING, NodePhase.PAUSED)
    world = job.rounds.world
    return world is not None and (world.started or follows(job, STARTED_FIRST)) and intact == len(world.members)


def have_left(job: JobState) -> bool:
    """Whether workers of the newest round have left it by themselves, for a fault that they noticed, and wait."""
    world = job.rounds.world
    return world is not None and any(
        report.source == "worker" and report.kind in SURVIVED and report.round == world.round
        for report in job.evidence.reports
    )


def registers_state(job: JobState) -> bool:
    """Whether the running script registered its state: ftcore saves it and loads it."""
    return Ability.SAVE in job.abilities.declared.get(WORKERS, ())


def script_declares(job: JobState, ability: Ability) -> bool:
    """Whether an ability is declared for the script's own code, not only because the script registered its state."""
    return any(ability in names for source, names in job.abilities.declared.items() if source != WORKERS)


def hands_over(job: JobState) -> bool:
    """Whether a plan that stops the workers now first has them save at one step boundary."""
    return follows(job, HANDOVER) and registers_state(job) and all_workers_alive(job)


def stays_in_another_size(incident: IncidentState, job: JobState, policy: str) -> bool:
    """Whether living workers may go on as they are in a world of another size.

    Not again if the policy has led to no step in this incident, or a restart has: their state is suspect.
    """
    suspect = has_tried(incident, job, policy) or job.history.streak > 0
    return job.can(Ability.RESIZE) and not suspect and any_worker_alive(job)


def any_worker_alive(job: JobState) -> bool:
    """Whether some member of the newest world may still have a worker with its state."""
    holding = (NodePhase.RUNNING, NodePhase.PAUSED, NodePhase.PARKED, NodePhase.FAULTED)
    return job.rounds.world is not None and job.membership.count(*holding) > 0


def living_ranks(job: JobState) -> frozenset[int]:
    """Global ranks of the newest world whose workers may still have their state."""
    held = (WorkerPhase.RUNNING, WorkerPhase.PARKED)
    found: set[int] = set()
    for member in job.rounds.world.members if job.rounds.world is not None else ():
        node = job.membership.current(member.node, member.incarnation)
        if node is not None and node.phase in HOLDING:
            found |= {member.base_rank + place for place, phase in enumerate(node.workers) if phase in held}
    return frozenset(found)


def a_worker_ended(incident: IncidentState, job: JobState) -> bool:
    """Whether a worker of the round ended by itself."""
    return any(report.type == "worker.failed" for report in reports(incident, job))


def interrupted(incident: IncidentState, job: JobState) -> bool:
    """Whether a failed plan has interrupted the training; then a request or a warning is handled like a fault."""
    anew = job.rounds.world is not None and job.rounds.world.round > incident.round
    return bool(incident.tried) and (job.history.streak > 0 or anew or not all_workers_alive(job))


def has_tried(incident: IncidentState, job: JobState, policy: str) -> bool:
    """Whether a plan of a policy has failed in this incident, or led to a new round that failed before a step."""
    return policy in incident.tried or any(time >= incident.opened for time in job.history.attempts.get(policy, ()))


def lost_nodes(incident: IncidentState, job: JobState) -> tuple[str, ...]:
    """Nodes of the incident whose agents are lost, the node at fault first."""
    reported = [report.node for report in reports(incident, job) if report.type in LOST_REPORTS]
    named = [node for node in incident.fault.nodes if node in job.membership.nodes]
    return tuple(node for node in dict.fromkeys([*named, *reported]) if not is_alive(job, node))


def keeps_failing(incident: IncidentState, job: JobState, times: int, window_s: float) -> bool:
    """Whether faults recur on the node at fault, and more often than on all others together.

    Faults of the script and of the data do not count: they follow the job to any node.

    Args:
        incident: the open incident.
        job: the folded state.
        times: limit of faults of the node, including this one; 0: never.
        window_s: seconds over which faults are counted.
    """
    node = culprit(incident)
    if times <= 0 or not node or facts(incident).at_fault not in ("process", "node"):
        return False
    own = faults_of(job, node, window_s)
    return own >= times and 2 * own > sum(faults_of(job, other, window_s) for other in job.evidence.node_faults)


def unfit(incident: IncidentState, job: JobState, options: Blame) -> tuple[str, ...]:
    """The node at fault, if it is alive but must not take part in the next round.

    Args:
        incident: the open incident.
        job: the folded state.
        options: ``classes`` (faults of the machine), ``node_faults`` and ``window`` (see ``keeps_failing``).
    """
    node = culprit(incident)
    if incident.kind != "fault" or not is_alive(job, node) or not is_member(job, node):
        return ()
    machine = incident.fault.cls in options.classes or must_separate(incident, job)
    return (node,) if machine or keeps_failing(incident, job, options.node_faults, options.window) else ()


def stays_at_fault(out: Sequence[str]) -> str:
    """Why nodes at fault stay in the world, and what the user can do about it; the last part of a reason."""
    return (
        f"; {listed(out)} is at fault and stays, for too few nodes would be left without it: start ftrun on one more "
        "node as a spare, or let the job go on with fewer (--nnodes MIN:MAX)"
    )


def must_separate(incident: IncidentState, job: JobState) -> bool:
    """Whether one of two nodes that cannot reach each other must leave: no restart helps while both take part.

    If they are checked before the next round, the check decides first whether one of them is broken.
    """
    if not is_cut(incident.fault):
        return False
    root = root_report(incident, job)
    checked = root is not None and root.source == "health"
    return checked or job.evidence.repeat.count > 1 or not _is_checked_next(incident, job)


def _is_checked_next(incident: IncidentState, job: JobState) -> bool:
    """Whether a restart policy that was not asked yet would check the nodes at fault."""
    restarts = [
        each for each in having(_entries_for(job, incident), Trait.RESTARTS) if each.policy not in incident.asked
    ]
    nodes = [job.membership.nodes[name] for name in incident.fault.nodes if name in job.membership.nodes]
    able = all(node.checks and wanted(job.policy.declared.health, node.accelerators) for node in nodes)
    return able and job.can(Ability.CHECK) and any(options_of(entry).check != "never" for entry in restarts)


def crash_loop(incident: IncidentState, job: JobState, options: Blame) -> tuple[str, ...]:
    """The node at fault, if faults recur on it, even while its agent is restarting.

    Args:
        incident: the open incident.
        job: the folded state.
        options: ``node_faults`` and ``window`` (see ``keeps_failing``).
    """
    node = culprit(incident)
    if incident.kind != "fault" or not is_member(job, node):
        return ()
    return (node,) if keeps_failing(incident, job, options.node_faults, options.window) else ()


def requested_node(incident: IncidentState, job: JobState) -> str:
    """The node of a request to drain or to evict; empty for any other incident."""
    if incident.kind != "request" or incident.fault.detail not in ("drain", "evict"):
        return ""
    if follows(job, READY_FIRST):
        return culprit(incident)  # ``requests.pending`` may already be a newer request for another node
    request = job.requests.pending
    return request.node if request is not None and request.node else culprit(incident)


def nodes_left(job: JobState, without: Collection[str] = ()) -> int:
    """Number of live nodes that could be in the next world, except those in ``without``."""
    taken_off = (job.membership.nodes[name] for name in without if name in job.membership.nodes)
    return job.membership.available() - sum(1 for node in taken_off if node.alive and node.phase not in OUTGOING)


def largest_world(job: JobState, without: Collection[str] = ()) -> int:
    """Number of nodes of the largest world that can be formed now, except those in ``without``; 0 if none can."""
    spec = job.spec
    if spec is None:
        return 0
    return usable(nodes_left(job, without), spec)


def nodes_hit(incident: IncidentState, job: JobState, window_s: float) -> tuple[str, ...]:
    """Nodes that are lost in this incident or were at fault in the last ``window_s`` seconds."""
    since = job.time - seconds(window_s)
    recent = [node for node, times in job.evidence.node_faults.items() if times and times[-1] > since]
    return tuple(dict.fromkeys([*lost_nodes(incident, job), *recent]))


def entries_below(job: JobState, policy: str, incident: IncidentState) -> list[ChainEntry]:
    """The entries below a policy that were not asked about the incident yet, in order.

    Args:
        job: the folded state, with the chain in force.
        policy: the policy that is being asked.
        incident: the open incident.
    """
    below = dropwhile(lambda entry: entry.policy != policy, _entries_for(job, incident))
    return [entry for entry in below if entry.policy != policy and entry.policy not in incident.asked]


def _entries_for(job: JobState, incident: IncidentState) -> list[ChainEntry]:
    """The entries that apply to the incident's class."""
    return [entry for entry in job.policy.chain if entry.is_for(incident.fault.cls)]
