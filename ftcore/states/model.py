"""The folded state of a job: data that the fold keeps, in records by meaning. Nothing here decides; see ``fold/``.

A record that means something only at times (a run's end, a plan, a health check) is None at all others.

House rules: the state follows from the log alone, and its size is bounded by the size of the job, not by the length of
its history. Values are plain (numbers, strings, enumerations, containers of them), so a state has a canonical JSON and
a digest. Containers keep the order of insertion and are never sets, so two folds of one log are equal to the byte. What
is asked after every fact costs the same however many nodes there are; an index that serves only that, and can be
rebuilt, has a name with an underscore and is not in the JSON.
"""

from enum import StrEnum
from typing import Any

import attrs
import msgspec

from ftcore.commands import Command
from ftcore.events.codec import digest_of
from ftcore.events.imported import IMPORTER
from ftcore.events.incident import Fault
from ftcore.events.job import JobSpec
from ftcore.events.policy import ChainEntry, Declared, PolicyAnswered, Terms
from ftcore.states.disruption import DisruptionPhase, DisruptionState
from ftcore.states.evidence import EvidenceState
from ftcore.states.health import HealthState
from ftcore.states.incident import IncidentPhase
from ftcore.states.job import JobPhase
from ftcore.states.membership import Membership
from ftcore.states.queue import QueueState
from ftcore.states.rounds import RoundsState
from ftcore.states.training import TrainingState

HISTORY_MAX = 64
"""Checkpoints, faults of a node and tolerated steps remembered."""

SKIPS_MAX = 256
"""Places at which data is left out that are remembered, the newest ones: workers get them in a variable."""


@attrs.define(kw_only=True)
class MasterState:
    """The newest leader, by its ``master.elected``."""

    host: str
    pid: int
    address: str
    version: str
    decides: int = 0


@attrs.frozen(kw_only=True)
class RunEnding:
    """How a plan of kind ``end`` ends the run.

    Args:
        outcome: ``failed`` or ``stopped``.
        exit_code: exit code of the job.
    """

    outcome: str
    exit_code: int


@attrs.define(kw_only=True)
class PlanOrder:
    """An order of a plan to nodes or to the platform: the newest of those that follow each other.

    Args:
        effect: its name in the log.
        finds: it is to find a step boundary; the order that is meant follows it.
        boundary: the latest step boundary that a node has answered; 0: none yet.
        persists: a save ends on storage: at a step boundary, or of shards that survivors have staged.
        refused: why it was refused, or failed; empty: it was not.
        saved_step: the newest step that a node had completed at the end of that save; None: not known.
    """

    effect: str
    finds: bool = False
    boundary: int = 0
    persists: bool = False
    refused: str = ""
    saved_step: int | None = None


@attrs.define(kw_only=True)
class TakenPlan:
    """The plan of the policy that took the incident.

    Args:
        policy: the policy.
        kind: what the plan does: ``restart``, ``in_place``, ``tell`` or ``end``.
        terms: what it does beyond its kind.
        reason: why the policy took the incident.
        taken_at: seq of the verdict.
        grace_s: seconds that workers have to stop by themselves.
        wait_s: seconds that the next round is held back.
        deadline_s: seconds within which the outcome must show; 0: no limit.
        ending: how the run ends; None unless the kind is ``end``.
        order: the plan's own order; None: it gave none yet.
        hold: the order by which healthy workers save at one step boundary in memory and wait there, before the plan
            stops them; None: they do not.
        rescue: the order to write to storage what only leaving nodes hold; empty: none was given.
        deferred_at: the master's time, in nanoseconds, since which the job trains on until other nodes are ready; None
            unless the incident is deferred.
    """

    policy: str
    kind: str
    terms: Terms
    reason: str
    taken_at: int
    grace_s: float
    wait_s: float
    deadline_s: float
    ending: RunEnding | None = None
    order: PlanOrder | None = None
    hold: PlanOrder | None = None
    rescue: str = ""
    deferred_at: int | None = None


@attrs.define(kw_only=True)
class IncidentState:
    """The open incident.

    Args:
        id: its name in the log, as ``i2``.
        kind: ``fault``, ``warning``, ``request`` or ``opportunity``.
        phase: the phase of its machine.
        fault: the present reading of the evidence.
        revision: how often that reading became worse.
        opened: the master's time, in nanoseconds.
        round: the round that was hit.
        progress: the newest step known to be completed when it was hit, if any.
        absolute: that step counts from the start of the training.
        counted: the node whose fault it is counted as; empty: no node's.
        asked: policies asked or taken in this revision, in order; none is asked twice.
        tried: policies whose plans failed.
        saved: a plan of this incident saved a checkpoint of the step it was hit at.
        answers: answers of policies of other packages in this revision, by name.
        plan: the plan that is carried out; None while the chain is asked.
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
    saved: bool = False
    answers: dict[str, PolicyAnswered] = attrs.field(factory=dict)
    plan: TakenPlan | None = None

    def plan_in_force(self) -> TakenPlan:
        """The plan, for what happens only while there is one."""
        assert self.plan is not None, f"{self.id} is {self.phase} and has no plan"
        return self.plan


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


@attrs.frozen(kw_only=True)
class OperatorRequest:
    """A request: ``stop``, ``pause``, ``resume``, ``drain``, ``evict`` or ``checkpoint``.

    Args:
        seq: the fact that it follows from.
        who: the operator, or the policy that pauses the job for a disruption.
    """

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
class LogState:
    """The event log itself.

    Args:
        identity: of the log; empty in a log that only releases without identities have written.
        sources: the newest fact of each source, as ``{source: (incarnation, number)}``; a repeated fact is dropped.
        contradicted: whether a node has seen events that this log does not hold, and what an operator decided.
        poisoned: the event that this version could not fold, with the error; empty if there is none. Later events are
            counted, not interpreted.
    """

    identity: str = ""
    sources: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    contradicted: Contradicted = Contradicted.NEVER
    poisoned: str = ""


@attrs.define(kw_only=True)
class RequestsState:
    """What operators asked for.

    Args:
        stop: the request to stop this run.
        pending: the newest other request that is not answered yet.
        paused_for: the request that the job is paused for, until it is resumed; that of a policy has the ``seq`` of the
            disruption whose end the policy awaits.
        resume: the request to resume a job that a policy paused, because what it awaited is over or lasts too long.
        held: an operator allows no recovery to begin: incidents stay open and the chain is not asked.
    """

    stop: OperatorRequest | None = None
    pending: OperatorRequest | None = None
    paused_for: OperatorRequest | None = None
    resume: OperatorRequest | None = None
    held: bool = False


@attrs.define(kw_only=True)
class PolicyState:
    """The policy file in force.

    Args:
        source: where it was read from.
        chain: its policies with their options, in priority order.
        rules: the job's own rules of classification.
        declared: what the file says about the job.
    """

    source: str = ""
    chain: tuple[ChainEntry, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    declared: Declared = attrs.field(factory=Declared)


@attrs.define(kw_only=True)
class AbilitiesState:
    """What the job can do beyond what every job can.

    Args:
        declared: abilities by the part of the job that declared them.
        lacking: missing abilities by policy, as already recorded in the log.
        stepped: number of nodes of the current world whose workers have reported each ability.
    """

    declared: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    lacking: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    stepped: dict[str, int] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class HistoryState:
    """What the chain has done so far: what budgets, back-off and offers are counted by.

    Args:
        attempts: times at which each policy took an incident of this run, oldest first.
        applied: time of each policy's newest plan that was carried out.
        streak: restarts since the last incident was resolved.
        offered: seq of the fact that the newest opportunity was opened for; 0: the next one may be offered.
        at_commit: a policy declined that opportunity until a checkpoint is committed.
    """

    attempts: dict[str, list[int]] = attrs.field(factory=dict)
    applied: dict[str, int] = attrs.field(factory=dict)
    streak: int = 0
    offered: int = 0
    at_commit: bool = False


@attrs.define(kw_only=True)
class OrdersState:
    """Orders to nodes, to the platform and to policies of other packages.

    Args:
        open: orders without a result by their effect, oldest first.
        issued: how many orders the log holds.
    """

    open: dict[str, ActionState] = attrs.field(factory=dict)
    issued: int = 0


@attrs.define(kw_only=True)
class StuckState:
    """A job that is stuck.

    Args:
        before: the phase that it returns to.
        reason: the fact that could not be folded, or what contradicts the log.
    """

    before: JobPhase
    reason: str


@attrs.define(kw_only=True)
class EndState:
    """How the run ended.

    Args:
        outcome: ``succeeded``, ``failed`` or ``stopped``.
        exit_code: exit code of the job.
        reason: why it ended.
    """

    outcome: str
    exit_code: int
    reason: str


@attrs.define(kw_only=True)
class JobState:
    """The folded state of a job after an event of its log.

    Args:
        seq: the last folded event.
        time: the master's time of that event, in nanoseconds since the epoch.
        term: the newest term.
        stuck: why the job is stuck; None unless it is.
        ending: how the run ended; None before.
        membership: nodes and their places.
        rounds: the newest round, its world and its stores.
        incident: the open incident, if any.
        incidents: how many incidents the log holds.
        deadlines: when each timer that runs expires, by its key; see ``timers.py``.
        health: the health check in progress, if any.
        queues: the job's data queues, by name; the next run continues them.
    """

    seq: int = 0
    time: int = 0
    term: int = 0
    log: LogState = attrs.field(factory=LogState)
    job: str = ""
    run: int = 0
    phase: JobPhase = JobPhase.ASSEMBLING
    stuck: StuckState | None = None
    spec: JobSpec | None = None
    digest: str = ""
    launch: str = ""
    ending: EndState | None = None
    master: MasterState | None = None
    requests: RequestsState = attrs.field(factory=RequestsState)
    policy: PolicyState = attrs.field(factory=PolicyState)
    abilities: AbilitiesState = attrs.field(factory=AbilitiesState)
    history: HistoryState = attrs.field(factory=HistoryState)
    membership: Membership = attrs.field(factory=Membership)
    rounds: RoundsState = attrs.field(factory=RoundsState)
    training: TrainingState = attrs.field(factory=TrainingState)
    evidence: EvidenceState = attrs.field(factory=EvidenceState)
    incident: IncidentState | None = None
    incidents: int = 0
    orders: OrdersState = attrs.field(factory=OrdersState)
    deadlines: dict[str, int] = attrs.field(factory=dict)
    health: HealthState | None = None
    queues: dict[str, QueueState] = attrs.field(factory=dict)

    def awaited(self) -> DisruptionState | None:
        """The disruption whose end the job is paused for; None if it is not paused, or for an operator."""
        pause, found = self.requests.paused_for, self.evidence.disruptions.values()
        awaited = (each for each in found if each.phase is DisruptionPhase.AWAITED)
        return next((each for each in awaited if pause is not None and each.seq == pause.seq), None)

    @property
    def imported(self) -> bool:
        """Whether the log was made of files of a job that no master led."""
        return self.master is not None and (self.master.host, self.master.pid) == (IMPORTER, 0)

    @property
    def end_is_unknown(self) -> bool:
        """Whether the log was made of files that do not show how the job ended."""
        return self.imported and self.ending is None

    def reason(self) -> str:
        """Why the job is stuck, or why its run ended; empty for a job that is neither."""
        ended = self.ending.reason if self.ending is not None else ""
        return self.stuck.reason if self.stuck is not None else ended

    def can(self, ability: str) -> bool:
        """Whether some part of the job declared this ability."""
        return any(ability in declared for declared in self.abilities.declared.values())


def to_json(state: JobState) -> bytes:
    """The state's canonical JSON: keys in the order of insertion, which the fold makes the same everywhere."""
    return msgspec.json.encode(state)


def digest(state: JobState) -> str:
    """Hex digest of a state: equal for equal folds, on any machine."""
    return digest_of(to_json(state))
