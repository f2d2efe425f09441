"""What is true of a job: the data that the fold keeps. Nothing here decides or steps; see ``fold.py``.

House rules: everything in here follows from the log alone and is bounded by the size of the job, not by the length of
its history. Values are plain (numbers, strings, enumerations, containers of them), so a state has a canonical JSON and
a digest. Containers keep the order of insertion and are never sets, so two folds of one log are equal to the byte. What
is asked after every fact costs the same however many nodes there are; what serves only that (an index that can be made
anew) has a name with an underscore and is no part of the JSON.
"""

from enum import StrEnum
from typing import Any

import attrs
import msgspec

from ftcore.commands import Command
from ftcore.events.codec import digest_of
from ftcore.events.incident import Fault
from ftcore.events.job import JobSpec
from ftcore.events.policy import ChainEntry, Declared, PolicyAnswered, Terms
from ftcore.events.world import Member
from ftcore.states.health import HealthState
from ftcore.states.incident import IncidentPhase
from ftcore.states.job import JobPhase
from ftcore.states.node import GONE, OUTGOING, NodePhase
from ftcore.states.worker import WorkerPhase

HITS_MAX = 32
"""Lines that rules knew, kept as evidence for the next fault."""

HISTORY_MAX = 64
"""Checkpoints, faults of a node and tolerated steps remembered."""

REPORTS_MAX = 64
"""Reports kept for telling the root of an incident from the rest; later ones change nothing any more."""

TAIL_BYTES_MAX = 2048
"""Output kept per report in the state; the event holds more, the node's log files hold all."""


@attrs.define(kw_only=True)
class MasterState:
    """Who leads, by its last ``master.elected``."""

    host: str
    pid: int
    address: str
    version: str
    decides: int = 0


@attrs.define(kw_only=True)
class NodeState:
    """One node: the newest incarnation of its agent.

    Args:
        pid: of its agent, on its host.
        phase: where it is.
        round: the newest round that it was ordered to start or stop.
        workers: where the workers of that round are, by local rank.
        stepped: the first step that all its workers completed in that round; None before.
        labels: what it says of where it stands.
        settled: its place is its own: it asked for it, or has trained at it.
        accelerators: devices that it has for training.
        checks: its agent can check devices and links.
        health: what its last check came to: ``healthy``, ``slow``, ``faulty`` or ``unknown``; empty: none was made.
        checked: the round before which that was.
        again: another process has had this name in this job before.
        role: role of its workers, where nodes may differ in it.
    """

    node: str
    incarnation: str
    ordinal: int
    slots: int
    host: str
    address: str
    pid: int
    phase: NodePhase
    round: int = 0
    workers: list[WorkerPhase] = attrs.field(factory=list)
    stepped: int | None = None
    labels: dict[str, str] = attrs.field(factory=dict)
    settled: bool = False
    accelerators: int = 0
    checks: bool = False
    health: str = ""
    checked: int = 0
    again: bool = False
    role: str = ""

    @property
    def alive(self) -> bool:
        """Its agent has not left, been lost or been replaced."""
        return self.phase not in GONE


@attrs.define(kw_only=True)
class WorldState:
    """The world of the newest round that was formed.

    Args:
        started: every member's workers run.
        stepped: members whose workers have all completed a step.
        roles: by member, the rank of its first worker among those of its role, and how many those are; empty: all
            members have the same role.
    """

    round: int
    members: tuple[Member, ...]
    size: int
    store: str
    started: bool = False
    stepped: int = 0
    roles: tuple[tuple[int, int], ...] = ()
    _seats: dict[str, int] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def seat(self, node: str) -> int | None:
        """The node's place among the members, which is its group rank; None if no life of it is one."""
        if len(self._seats) != len(self.members):
            self._seats = {member.node: seat for seat, member in enumerate(self.members)}
        return self._seats.get(node)

    def has(self, node: str, incarnation: str) -> bool:
        """Whether this very incarnation is a member."""
        seat = self.seat(node)
        return seat is not None and self.members[seat].incarnation == incarnation


@attrs.define(kw_only=True)
class Plan:
    """A round that is to come.

    Args:
        round: its number.
        want: nodes that it waits for until its window is over.
    """

    round: int
    want: int


@attrs.frozen(kw_only=True)
class Report:
    """What a fact said of a fault, as it was said; classification reads it anew each time.

    Args:
        seq: the fact.
        type: its event type.
        node, rank: what it is about; rank -1 for a whole node.
        round: the round that was hit.
        time: the master's nanoseconds.
        mono, boot: the source's monotonic nanoseconds and the boot that they belong to; 0 and empty if not told.
        exitcode: exit code of the worker, negative for a signal; None if no process ended.
        message: the exception, the platform's words, or the operator's.
        tail: the last lines of the worker's output.
        step, absolute: the last completed step.
        source, kind: of a ``fault.observed``: who saw it, and what.
        values: its figures, by name.
    """

    seq: int
    type: str
    node: str
    rank: int
    round: int
    time: int
    mono: int
    boot: str
    exitcode: int | None
    message: str
    tail: str
    step: int | None
    absolute: bool
    source: str = ""
    kind: str = ""
    values: dict[str, float] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class IncidentState:
    """The open incident.

    Args:
        asked: policies asked or taken in this revision, in order; none is asked twice.
        taken: the policy whose plan is being carried out, or empty.
        plan: that plan's kind.
        terms: what it does beyond its kind.
        saved: a plan of this incident saved a checkpoint of the step it was hit at.
        taken_at: seq of the verdict that took it.
        effect: the plan's own order, if it has one: in place, or to the platform.
        refused: why that order was refused, if it was.
        deferred: when the plan was deferred until others are ready, in the master's nanoseconds; 0: it was not.
        answers: what policies that are not ftcore's said in this revision, by name.
        round: the round that was hit.
        progress: the newest step known to be completed when it was hit, if any.
        counted: the node whose fault it is counted as, if it is one's.
    """

    id: str
    kind: str
    phase: IncidentPhase
    fault: Fault
    revision: int
    opened: int
    round: int
    progress: int | None
    absolute: bool
    counted: str = ""
    asked: list[str] = attrs.field(factory=list)
    tried: list[str] = attrs.field(factory=list)
    taken: str = ""
    plan: str = ""
    terms: Terms = attrs.field(factory=Terms)
    saved: bool = False
    taken_at: int = 0
    effect: str = ""
    refused: str = ""
    deferred: int = 0
    answers: dict[str, PolicyAnswered] = attrs.field(factory=dict)
    grace_s: float = 0.0
    wait_s: float = 0.0
    deadline_s: float = 0.0
    outcome: str = ""
    exit_code: int = 0
    reason: str = ""


@attrs.frozen(kw_only=True)
class NanState:
    """The loss is not finite any more.

    Args:
        seq: the fact that says so.
        round: the round in which it was seen.
        since: the first step of the row.
    """

    seq: int
    round: int
    since: int


@attrs.define(kw_only=True)
class ActionState:
    """An order without a result.

    Args:
        waiting: nodes that have not answered, as ``{node: incarnation}``.
    """

    effect: str
    command: Command
    waiting: dict[str, str]
    ordered: int


@attrs.define(kw_only=True)
class Repeat:
    """How often the same fault came at the same place, one incident or one failed attempt after the other.

    Args:
        key: class, message without its numbers, and last completed step.
        count: how often in a row it came, the newest time included.
        before: the key of the time before, with its count; what a new reading is compared with.
    """

    key: str = ""
    count: int = 0
    before: tuple[str, int] = ("", 0)


@attrs.frozen(kw_only=True)
class Standstill:
    """An alert: no step is completed, and what the ranks do instead may be healthy.

    Args:
        round: the round.
        since: time of the event that told of it first.
        cause: as ``faults/standstill.py`` names it.
        message: who does what, for people.
        stacks: the file with the stacks of a rank, on its node.
    """

    round: int
    since: int
    cause: str
    message: str
    stacks: str = ""


@attrs.frozen(kw_only=True)
class Skip:
    """Data that is left out."""

    step: int
    amount: int
    unit: str


@attrs.frozen(kw_only=True)
class Request:
    """Somebody asked for something by hand: ``stop``, ``pause``, ``resume``, ``drain``, ``evict``, ``checkpoint``."""

    seq: int
    command: str
    who: str
    why: str
    exit_code: int = 0
    node: str = ""


class Contradicted(StrEnum):
    """Whether a node has seen events that the log does not hold."""

    NEVER = ""
    """No node has."""
    OPEN = "open"
    """A node has: no run begins and no world is formed before an operator decides."""
    SETTLED = "settled"
    """An operator chose this log: nodes that contradict it stop their workers."""
    RESUMED = "resumed"
    """An operator chose this log, in which the job has ended: nodes that contradict it begin the next run."""


@attrs.define(kw_only=True)
class JobState:
    """Everything that is true of a job after some event of its log.

    Args:
        contradicted: whether a node has seen what this log does not hold, and an operator has decided about it.
        log_id: the identity of the log; empty in a log that no master of a release with identities has led.
        ordinals: the place that each node had last, by name.
        places: the living node at each place.
        places_end: above every place that was ever taken.
        phases: how many nodes are in each phase: what is asked after every fact must not look at every node.
        stop: the wish that this run end; it stands until it does.
        request: another wish that was not answered yet; a newer one takes its place.
        paused_for: the wish that the job is paused for; it stands until somebody resumes it.
        held: an operator wants no recovery to begin; incidents stay open and the chain is not asked.
        abilities: what each part of the job declared that it can do.
        lacking: abilities that are missing, by policy, as the log holds it already.
        quarantined: why, by node.
        admitted: nodes that an operator let in again and that have not trained since.
        health: the health check under way.
        unchecked: living nodes that are to be checked before they take part, as ``{node: incarnation}``.
        cold: living nodes that never started workers and cannot fork them yet, as ``{node: incarnation}``.
        launched: nodes that others were launched for while they train, with the order's effect; until they are ended.
        checkpoints: steps whose checkpoint is committed, of the living lineage, newest last.
        curves: the newest trouble with a figure of the whole job, by its kind: round, step and the node that told it.
        nan: the loss was not finite for many steps in a row, and none is known to be finite since.
        declared: what the policy file says of the job.
        rules: the job's own rules of classification, as its policy file has them.
        hits: lines of output that rules knew, newest last: evidence for the next fault.
        node_faults: times of the newest faults with that node as the culprit.
        applied: time of each policy's newest plan that was carried out.
        resume_step: the step that the workers are told to resume from, until they have made a step after a rollback.
        skips: what of the data is left out along the living lineage.
        tolerated: steps whose trouble was tolerated, newest last.
        offered: seq of the fact that the newest opportunity came of.
        at_commit: that opportunity was declined, and is worth to be looked at again once a checkpoint is committed.
        committed: time of the newest committed checkpoint of this run; 0 before.
        standstill: no step is completed at the moment, and an alert was raised; None: steps are completed.
        longest_gap_s: the longest time without a step that this job went on from by itself, of those an alert told.
        ceilings: how often in this run no step until the ceiling was taken for a hang.
    """

    seq: int = 0
    time: int = 0
    term: int = 0
    job: str = ""
    log_id: str = ""
    run: int = 0
    phase: JobPhase = JobPhase.ASSEMBLING
    before_stuck: JobPhase | None = None
    contradicted: Contradicted = Contradicted.NEVER
    poisoned: str = ""
    spec: JobSpec | None = None
    digest: str = ""
    launch: str = ""
    outcome: str = ""
    exit_code: int = 0
    reason: str = ""
    stop: Request | None = None
    request: Request | None = None
    paused_for: Request | None = None
    held: bool = False
    master: MasterState | None = None
    chain: tuple[ChainEntry, ...] = ()
    policy_source: str = ""
    rules: tuple[dict[str, Any], ...] = ()
    declared: Declared = attrs.field(factory=Declared)
    nodes: dict[str, NodeState] = attrs.field(factory=dict)
    ordinals: dict[str, int] = attrs.field(factory=dict)
    places: dict[int, str] = attrs.field(factory=dict)
    places_end: int = 0
    phases: dict[NodePhase, int] = attrs.field(factory=dict)
    round: int = 0
    round_first: int = 1
    world: WorldState | None = None
    plan: Plan | None = None
    stores: dict[int, str] = attrs.field(factory=dict)
    store_nodes: dict[int, str] = attrs.field(factory=dict)
    incident: IncidentState | None = None
    incidents: int = 0
    reports: list[Report] = attrs.field(factory=list)
    actions: dict[str, ActionState] = attrs.field(factory=dict)
    orders: int = 0
    deadlines: dict[str, int] = attrs.field(factory=dict)
    sources: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    attempts: dict[str, list[int]] = attrs.field(factory=dict)
    abilities: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    lacking: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    quarantined: dict[str, str] = attrs.field(factory=dict)
    admitted: list[str] = attrs.field(factory=list)
    health: HealthState | None = None
    unchecked: dict[str, str] = attrs.field(factory=dict)
    cold: dict[str, str] = attrs.field(factory=dict)
    launched: dict[str, str] = attrs.field(factory=dict)
    checkpoints: list[int] = attrs.field(factory=list)
    curves: dict[str, tuple[int, int | None, str]] = attrs.field(factory=dict)
    nan: NanState | None = None
    hits: list[Report] = attrs.field(factory=list)
    node_faults: dict[str, list[int]] = attrs.field(factory=dict)
    applied: dict[str, int] = attrs.field(factory=dict)
    resume_step: int | None = None
    skips: list[Skip] = attrs.field(factory=list)
    tolerated: list[int] = attrs.field(factory=list)
    offered: int = 0
    at_commit: bool = False
    committed: int = 0
    standstill: Standstill | None = None
    longest_gap_s: float = 0.0
    ceilings: int = 0
    streak: int = 0
    repeat: Repeat = attrs.field(factory=Repeat)
    step: int | None = None
    step_absolute: bool = False
    step_round: int = 0
    reports_steps: bool = False
    _taken_below: int = attrs.field(default=0, init=False, eq=False, repr=False)

    def vacate(self, ordinal: int) -> None:
        """Nobody holds this place any more."""
        del self.places[ordinal]
        self._taken_below = min(self._taken_below, ordinal)

    def free_place(self) -> int:
        """The lowest place that nobody holds."""
        while self._taken_below in self.places:
            self._taken_below += 1
        return self._taken_below

    def alive(self) -> list[NodeState]:
        """Nodes whose agent lives, in order of ordinal. Sorts: not for a question that every fact asks."""
        return [self.nodes[self.places[ordinal]] for ordinal in sorted(self.places)]

    def count(self, *phases: NodePhase) -> int:
        """How many nodes are in those phases; costs nothing, however many nodes there are."""
        return sum(self.phases.get(phase, 0) for phase in phases)

    def available(self) -> int:
        """How many nodes could be in the next world: those that live and are not on their way out."""
        return len(self.places) - self.count(*OUTGOING)

    def ready(self) -> int:
        """How many of those need no health check before."""
        return self.available() - len(self.unchecked)

    def can(self, ability: str) -> bool:
        """Whether some part of the job declared this ability."""
        return any(ability in declared for declared in self.abilities.values())

    def current(self, node: str, incarnation: str) -> NodeState | None:
        """The node, if that incarnation is its newest and lives."""
        found = self.nodes.get(node)
        return found if found is not None and found.incarnation == incarnation and found.alive else None


def to_json(state: JobState) -> bytes:
    """The state's canonical JSON: keys in the order of insertion, which the fold makes the same everywhere."""
    return msgspec.json.encode(state)


def digest(state: JobState) -> str:
    """Hex digest of a state: equal for equal folds, on any machine."""
    return digest_of(to_json(state))
