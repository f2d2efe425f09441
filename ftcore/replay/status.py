"""The status of a job at a point of its log, as ``ftctl status`` and ``ftctl jobs`` show it."""

from typing import Any

import attrs

from ftcore.policies.abilities import OBSERVED
from ftcore.states.model import JobState, OperatorRequest
from ftcore.states.phases import has_ended, is_assembling, is_deferred, is_open, is_paused
from ftcore.states.rate import lr_factor
from ftcore.states.replicas import declared_groups, found_groups
from ftcore.wording import timestamp_fields


@attrs.frozen(kw_only=True)
class MasterInfo:
    """The last elected master, from its ``master.elected``; ``id`` is ``host:pid``."""

    id: str
    host: str
    pid: int
    address: str


@attrs.frozen(kw_only=True)
class WorldInfo:
    """The newest world.

    Args:
        round: its round.
        size: ranks.
        node_count: members.
    """

    round: int
    size: int
    node_count: int


@attrs.frozen(kw_only=True)
class NodeStatus:
    """A node's newest incarnation.

    Args:
        node: its name.
        ordinal: its ordinal in the job.
        state: state of the node machine.
        slots: number of its ranks.
        host: its host.
        round: the newest round that it was ordered to start or stop.
        health: result of its last health check; empty if there was none.
    """

    node: str
    ordinal: int
    state: str
    slots: int
    host: str
    round: int
    health: str = ""


@attrs.frozen(kw_only=True)
class RequestInfo:
    """An operator's request.

    Args:
        seq: its event.
        command, node, who, why: fields of the event; node is empty for a command without one.
    """

    seq: int
    command: str
    node: str
    who: str
    why: str


@attrs.frozen(kw_only=True)
class StandstillInfo:
    """No step is completed, and there is no evidence of a hang yet, so workers keep running.

    Args:
        since: when an alert was raised, nanoseconds since the epoch.
        cause: ``silent``, or ``finished``: all ranks have finished their script, but their processes have not ended.
        message: which ranks do what.
        stacks: the file with the stacks of a rank, on its node; empty if there is none.
    """

    since: int
    cause: str
    message: str
    stacks: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**timestamp_fields("alerted", self.since), "kind": self.cause, "message": self.message}


@attrs.frozen(kw_only=True)
class JobStatus:
    """The status of a job.

    Args:
        job: its name.
        state: state of the job machine; ``unsubmitted`` if the log has no run yet.
        run: number of the run in this log, from 1.
        term: the last master's term.
        master: the last master; None before the first.
        world: the newest world; None before the first.
        step: the newest step known to be completed, if any.
        step_absolute: ``step`` counts from the start of the training, not of the round.
        incident_count: incidents opened in the whole log.
        incidents_open: how many of them are open.
        incident: id of the open incident.
        last_seq: the last event that the status includes.
        time: time of that event, nanoseconds since the epoch; None if the log is empty.
        exit_code, reason: of the run's end; None before.
        replicas: which ranks hold the same state, from the policy file: ``all``, ``none``, or groups of global ranks;
            None if the file does not say, or the groups do not fit the newest world.
        found_replicas: the replica groups that follow from what the ranks of the newest world registered; None if they
            have not reported them.
        nan_since: the first step of the current NaN or infinite loss; None if the loss is finite or not known.
        paused: training waits at a step boundary, or will wait again after the open incident.
        paused_for: who paused it: an operator, or a policy until the end of the disruption in ``why``.
        held: no recovery begins until an operator resumes the job.
        request: the operator's request that waits or is being carried out, if any.
        quarantined: nodes that may not join until an operator admits them, and why.
        abilities: abilities by the part of the job that declared them.
        unsupported: abilities that the policy file declares and this release cannot carry out.
        checkpoint: step of the newest valid committed checkpoint, if any.
        lr_factor: factor for the learning rate that the script sets; below 1: a policy has lowered it.
        nodes: all nodes by ordinal; nodes that left or were lost come last.
        standstill: set while no step is completed and an alert was raised.
        leaving: nodes that train until their replacements are ready, and leave then.
        imported: the log was made of files; without ``exit_code`` they do not show how the job ended, and ``state`` is
            that of their last line.
    """

    job: str
    state: str
    run: int
    term: int
    master: MasterInfo | None
    world: WorldInfo | None
    step: int | None
    step_absolute: bool
    incident_count: int
    incidents_open: int
    incident: str | None
    last_seq: int
    time: int | None
    exit_code: int | None
    reason: str | None
    replicas: str | tuple[tuple[int, ...], ...] | None
    nan_since: int | None
    paused: bool
    paused_for: RequestInfo | None
    held: bool
    request: RequestInfo | None
    quarantined: dict[str, str]
    abilities: dict[str, tuple[str, ...]]
    unsupported: tuple[str, ...]
    checkpoint: int | None
    lr_factor: float
    nodes: tuple[NodeStatus, ...]
    standstill: StandstillInfo | None = None
    leaving: tuple[str, ...] = ()
    found_replicas: tuple[tuple[int, ...], ...] | None = None
    imported: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; groups of replicas are in ``replica_groups``."""
        fields = attrs.asdict(self)
        fields["replicas"], fields["replica_groups"] = self.replicas, None
        if isinstance(self.replicas, tuple):
            fields["replicas"], fields["replica_groups"] = "groups", self.replicas
        if self.standstill is not None:
            fields["standstill"] = self.standstill.to_json()
        return {**fields, **timestamp_fields("time", self.time)}

    def to_short_json(self) -> dict[str, Any]:
        """``to_json`` with ``node_count`` instead of ``nodes``."""
        fields = self.to_json()
        del fields["nodes"]
        return {**fields, "node_count": len(self.nodes)}


def status_of(state: JobState, job: str = "") -> JobStatus:
    """The status in a folded state.

    Args:
        state: the state.
        job: the log's name; if empty, the submitted name.
    """
    leader, world, incident = state.master, state.rounds.world, state.incident
    training, declared = state.training, state.policy.declared
    open_now = incident is not None and is_open(incident)
    deferred = is_deferred(incident)
    return JobStatus(
        job=job or state.job,
        state="unsubmitted" if not state.run and is_assembling(state) else str(state.phase),
        run=state.run,
        term=state.term,
        master=None
        if leader is None
        else MasterInfo(id=f"{leader.host}:{leader.pid}", host=leader.host, pid=leader.pid, address=leader.address),
        world=None if world is None else WorldInfo(round=world.round, size=world.size, node_count=len(world.members)),
        step=training.step,
        step_absolute=training.step_absolute,
        incident_count=state.incidents,
        incidents_open=int(open_now),
        incident=incident.id if incident is not None and open_now else None,
        last_seq=state.seq,
        time=state.time if state.seq else None,
        exit_code=state.ending.exit_code if state.ending is not None else None,
        reason=state.reason() or None,
        replicas=_declared_replicas(state),
        nan_since=training.nan.since if training.nan is not None else None,
        paused=is_paused(state) or state.requests.paused_for is not None,
        paused_for=_request_info(state.requests.paused_for),
        held=state.requests.held,
        request=None if has_ended(state) else _request_info(state.requests.stop or state.requests.pending),
        quarantined=dict(state.membership.quarantined),
        abilities={source: names for source, names in state.abilities.declared.items() if names},
        unsupported=tuple(name for name in declared.unsupported if name not in OBSERVED),
        checkpoint=training.checkpoints[-1] if training.checkpoints else None,
        lr_factor=lr_factor(state),
        nodes=_nodes(state),
        standstill=_standstill(state) if not open_now or deferred else None,
        leaving=incident.plan_in_force().terms.exclude if incident is not None and deferred else (),
        found_replicas=found_groups(state) or None,
        imported=state.imported,
    )


def _declared_replicas(state: JobState) -> str | tuple[tuple[int, ...], ...] | None:
    declared, world = state.policy.declared, state.rounds.world
    if declared.replicas != "layout":
        return declared.groups or declared.replicas or None
    return (declared_groups(declared, world.size) or None) if world is not None else None


def _nodes(state: JobState) -> tuple[NodeStatus, ...]:
    """Living nodes by ordinal, then the others."""
    nodes = sorted(state.membership.nodes.values(), key=lambda node: (not node.alive, node.ordinal, node.node))
    return tuple(
        NodeStatus(
            node=node.node,
            ordinal=node.ordinal,
            state=str(node.phase),
            slots=node.slots,
            host=node.host,
            round=node.round,
            health=node.health,
        )
        for node in nodes
    )


def _standstill(state: JobState) -> StandstillInfo | None:
    found = state.training.standstill
    if found is None:
        return None
    return StandstillInfo(since=found.since, cause=found.cause, message=found.message, stacks=found.stacks)


def _request_info(request: OperatorRequest | None) -> RequestInfo | None:
    if request is None:
        return None
    return RequestInfo(seq=request.seq, command=request.command, node=request.node, who=request.who, why=request.why)
