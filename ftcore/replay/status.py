"""What is true of a job at some point of its log, in the words of ``ftctl status`` and ``ftctl jobs``."""

from typing import Any

import attrs

from ftcore.states.model import JobState, Request
from ftcore.states.phases import has_ended, is_assembling, is_deferred, is_open, is_paused
from ftcore.wording import moment


@attrs.frozen(kw_only=True)
class MasterInfo:
    """Who led last, by its ``master.elected``.

    Args:
        id: ``host:pid``.
        host, pid, address: as it said.
    """

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
class NodeInfo:
    """A node's newest incarnation.

    Args:
        node: its name.
        ordinal: its place.
        state: state of the node machine.
        slots: ranks it holds.
        host: its host.
        round: the newest round that it was ordered to start or stop.
        health: what its last check came to; empty: none was made.
    """

    node: str
    ordinal: int
    state: str
    slots: int
    host: str
    round: int
    health: str = ""


@attrs.frozen(kw_only=True)
class WishInfo:
    """What somebody asked for by hand.

    Args:
        seq: its event.
        command, node, who, why: as it was asked; node empty where it is about none.
    """

    seq: int
    command: str
    node: str
    who: str
    why: str


@attrs.frozen(kw_only=True)
class StandstillInfo:
    """No step is completed; workers are left alone, as it may be healthy.

    Args:
        since: when an alert was raised, nanoseconds since the epoch.
        cause: ``silent``, or ``finished``: all ranks have finished their script, and do not end.
        message: who does what.
        stacks: the file with the stacks of a rank, on its node; empty: there is none.
    """

    since: int
    cause: str
    message: str
    stacks: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**moment("alerted", self.since), "kind": self.cause, "message": self.message}


@attrs.frozen(kw_only=True)
class JobStatus:
    """A job in brief.

    Args:
        job: its name.
        state: state of the job machine; ``unsubmitted`` if the log holds no run yet.
        run: the how-manieth run of this log.
        term: the last master's term.
        master: that master; None before the first.
        world: the newest world; None before the first.
        step: the newest step known to be completed, if any.
        step_absolute: that step counts from the start of the training.
        incident_count: incidents opened in the whole log.
        incidents_open: how many of them are not closed yet.
        incident: the open one's id.
        last_seq: the event that this is true after.
        time: its time, nanoseconds since the epoch; None: the log is empty.
        exit_code, reason: of the run's end; None while it goes on.
        replicas: which ranks hold the same state, as the policy file says: ``all``, ``none``, or groups of global
            ranks; None: it does not say.
        nan_since: the first step from which on the loss is NaN or infinite; None: it is not, as far as is known.
        paused: the training waits at a step boundary, or will again after a fault that came in between.
        held: no recovery begins, because somebody wants it so.
        request: the wish that waits for its turn or is being carried out; None: none does.
        quarantined: why, by node: nodes that take part in no round any more.
        abilities: what each part of the job declared that it can do.
        unsupported: abilities that the policy file declares and the release that read it cannot carry out.
        checkpoint: step of the newest committed checkpoint that counts; None: the log knows of none.
        nodes: all nodes by ordinal, those that are gone last.
        standstill: no step is completed at the moment and an alert was raised; None: otherwise.
        leaving: nodes that train until others are ready for their places, and leave then.
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
    held: bool
    request: WishInfo | None
    quarantined: dict[str, str]
    abilities: dict[str, tuple[str, ...]]
    unsupported: tuple[str, ...]
    checkpoint: int | None
    nodes: tuple[NodeInfo, ...]
    standstill: StandstillInfo | None = None
    leaving: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; groups of ranks that hold the same state have a field of their own."""
        fields = attrs.asdict(self)
        fields["replicas"], fields["replica_groups"] = self.replicas, None
        if isinstance(self.replicas, tuple):
            fields["replicas"], fields["replica_groups"] = "groups", self.replicas
        if self.standstill is not None:
            fields["standstill"] = self.standstill.to_json()
        return {**fields, **moment("time", self.time)}

    def to_short_json(self) -> dict[str, Any]:
        """The same with the number of nodes in place of the nodes."""
        fields = self.to_json()
        del fields["nodes"]
        return {**fields, "node_count": len(self.nodes)}


def status_of(state: JobState, job: str = "") -> JobStatus:
    """The status that a folded state tells.

    Args:
        state: the state.
        job: the log's name; the one that was submitted if empty.
    """
    leader, world, incident = state.master, state.world, state.incident
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
        step=state.step,
        step_absolute=state.step_absolute,
        incident_count=state.incidents,
        incidents_open=int(open_now),
        incident=incident.id if incident is not None and open_now else None,
        last_seq=state.seq,
        time=state.time if state.seq else None,
        exit_code=state.exit_code if state.outcome else None,
        reason=state.reason or None,
        replicas=state.declared.groups or state.declared.replicas or None,
        nan_since=state.nan.since if state.nan is not None else None,
        paused=is_paused(state) or state.paused_for is not None,
        held=state.held,
        request=None if has_ended(state) else _wish(state.stop or state.request),
        quarantined=dict(state.quarantined),
        abilities={source: names for source, names in state.abilities.items() if names},
        unsupported=state.declared.unsupported,
        checkpoint=state.checkpoints[-1] if state.checkpoints else None,
        nodes=tuple(
            NodeInfo(
                node=node.node,
                ordinal=node.ordinal,
                state=str(node.phase),
                slots=node.slots,
                host=node.host,
                round=node.round,
                health=node.health,
            )
            for node in sorted(state.nodes.values(), key=lambda node: (not node.alive, node.ordinal, node.node))
        ),
        standstill=None
        if state.standstill is None or (open_now and not deferred)
        else StandstillInfo(
            since=state.standstill.since,
            cause=state.standstill.cause,
            message=state.standstill.message,
            stacks=state.standstill.stacks,
        ),
        leaving=incident.terms.exclude if incident is not None and deferred else (),
    )


def _wish(request: Request | None) -> WishInfo | None:
    if request is None:
        return None
    return WishInfo(seq=request.seq, command=request.command, node=request.node, who=request.who, why=request.why)
