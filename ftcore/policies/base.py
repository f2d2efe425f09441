"""The interface of a policy: a pure function from an incident and the folded state to a verdict.

A policy answers ``Take``, with the plan to carry out, or ``Pass``, with the reason. It has no side effects, keeps no
state and reads only its arguments. Budgets and back-off are computed from the folded state, so they survive a failover
of the master. Every answer becomes a ``policy.considered`` event.
"""

from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

import attrs

from ftcore.events.policy import Terms
from ftcore.policies.options import Options
from ftcore.states.model import IncidentState, JobState


class PlanKind(StrEnum):
    """The kinds of plans that the master can carry out; ``Terms`` have the details."""

    RESTART = "restart"
    """Stop or park all workers, form the next round, start its workers; succeeds when a step is completed."""
    IN_PLACE = "in_place"
    """Send one command to every living member; its processes keep running. ``Terms.then`` says what follows."""
    TELL = "tell"
    """Send an alert, and ask the next entry of the chain at once."""
    END = "end"
    """Stop all workers, then end the job."""


class Ability(StrEnum):
    """A capability that not every platform or script has; declared in ``ability.declared``, required by policies."""

    REPLACE = "replace"
    """The platform can launch a replacement for a node."""
    CHECK = "check"
    """Agents can check the devices and links of their nodes."""
    PAUSE = "pause"
    """Workers can pause at a step boundary and resume on request."""
    RETRY = "retry"
    """Workers can load the state before a step and compute it again, in the same processes with new process groups."""
    PARK = "park"
    """Workers can leave a round and enter the next one, in which other processes are new."""
    RESIZE = "resize"
    """Workers can leave a round and enter the next one with another number of ranks."""
    SAVE = "save"
    """Workers can save a checkpoint on request, also when other ranks are lost."""
    CHECKPOINT = "checkpoint"
    """Workers can save a checkpoint on request at a step boundary of all ranks: enough for `save` while all run."""
    INTERVAL = "interval"
    """Workers save to storage after the steps that the master names."""
    ROLLBACK = "rollback"
    """The script can resume from the checkpoint of a given step."""
    SKIP = "skip"
    """The script can skip a given amount of data."""
    TOKENS = "tokens"
    """The script says how many tokens a step has, so that its registered data can be skipped by tokens."""
    REPLICAS = "replicas"
    """At least two ranks hold every part of the state."""


@attrs.frozen(kw_only=True)
class Take:
    """The policy takes the incident.

    Args:
        plan: kind of the plan to carry out.
        reason: why; shown to users.
        grace_s: seconds between TERM and KILL of a worker.
        wait_s: seconds of back-off before the next round.
        deadline_s: seconds from the start of the next round until its first completed step; 0: no limit.
        attempt: number of this attempt within the budget's window, from 1.
        outcome: for ``END``: ``failed`` or ``stopped``.
        exit_code: for ``END``: the job's exit code.
        terms: details of the plan.
    """

    plan: PlanKind
    reason: str
    grace_s: float
    wait_s: float = 0.0
    deadline_s: float = 0.0
    attempt: int | None = None
    outcome: str = ""
    exit_code: int = 0
    terms: Terms = attrs.field(factory=Terms)


@attrs.frozen(kw_only=True)
class Pass:
    """The policy does not take the incident.

    Args:
        reason: why; shown to users.
        again_s: seconds after which to ask again about an opportunity; 0: only when the state changes.
        at_commit: ask again as soon as a checkpoint is committed, if that is earlier.
        lacks: the abilities that the job does not have.
    """

    reason: str
    again_s: float = 0.0
    at_commit: bool = False
    lacks: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Ask:
    """The policy belongs to another package: the master's runtime asks it, and its answer is recorded as a fact.

    Args:
        within_s: timeout in seconds; no answer by then counts as a pass.
    """

    within_s: float


Verdict: TypeAlias = Take | Pass


class Policy(Protocol):
    """A policy: its name, options, required abilities, and the decision itself.

    If the job lacks one of ``needs``, the chain does not ask the policy and records a pass with the reason. If
    ``kinds`` has neither the incident's kind (``fault``, ``warning``, ``request``, ``opportunity``) nor, for a request,
    the requested operation, the chain skips the policy without a record. ``interrupted`` matches an incident of any
    kind after a plan stopped the workers and failed, ``disruption`` a warning about a disruption (policies of
    ftcore alone).

    ``conditions`` say when the policy takes an incident and when it passes; ``ftctl policy explain`` prints them.
    """

    name: ClassVar[str]
    doc: ClassVar[str]
    conditions: ClassVar[tuple[str, ...]]
    kinds: ClassVar[tuple[str, ...]]
    options: ClassVar[type[Options]]
    needs: ClassVar[tuple[Ability, ...]]

    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        """Take the incident or pass it on to the next policy.

        Args:
            incident: the open incident; must not be modified.
            job: the folded state; ``job.time`` is the current time; must not be modified.
            options: the policy's options as set in the chain.
        """
