"""What a policy is: a pure question and a declared plan.

A policy is asked about an incident and answers ``Take`` (with the plan that it wants carried out) or ``Pass`` (with the
reason). It performs nothing, remembers nothing and reads nothing but its arguments; budgets and back-off live in the
folded state, so they survive the master. Every answer becomes a ``policy.considered`` event.
"""

from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

import attrs

from ftcore.events.policy import Terms
from ftcore.policies.options import Options
from ftcore.states.model import IncidentState, JobState


class PlanKind(StrEnum):
    """What the master can carry out; ``Terms`` say how."""

    RESTART = "restart"
    """Stop or park all workers, form the next round, start its workers; outcome: a step is completed."""
    IN_PLACE = "in_place"
    """Order one thing from every living member; its processes stay. What follows is in ``Terms.then``."""
    TELL = "tell"
    """Tell people, and go on with the chain at once."""
    END = "end"
    """Stop all workers, then end the job."""


class Ability(StrEnum):
    """What not every platform or script can do; declared in ``ability.declared``, asked for by policies."""

    REPLACE = "replace"
    """The platform launches a node for the place of another."""
    CHECK = "check"
    """Nodes check their own devices and links."""
    PAUSE = "pause"
    """Workers wait at a step boundary and go on when told."""
    RETRY = "retry"
    """Workers compute a failed step again in the same processes."""
    SNAPSHOT = "snapshot"
    """Workers can go back to their state before the step."""
    PARK = "park"
    """Workers leave a round and enter the next one without losing their state."""
    SAVE = "save"
    """Workers save a checkpoint when told, also when other ranks are gone."""
    ROLLBACK = "rollback"
    """The script resumes from the checkpoint of a step that it is told."""
    SKIP = "skip"
    """The script leaves out data that it is told to."""
    REPLICAS = "replicas"
    """Every part of the state is held by at least two ranks."""


@attrs.frozen(kw_only=True)
class Take:
    """The policy takes the incident.

    Args:
        plan: what to carry out.
        reason: why, for people.
        grace_s: seconds that workers get between TERM and KILL.
        wait_s: seconds of back-off before the next round.
        deadline_s: seconds from the next round's start in which a step must be completed; 0: no limit.
        attempt: the how-manieth attempt in the budget's window.
        outcome: for ``END``: ``failed`` or ``stopped``.
        exit_code: for ``END``: the job's exit code.
        terms: what the plan does beyond its kind.
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
        reason: why, for people.
        again_s: seconds after which an opportunity is worth to be offered again; 0: when something changes.
        at_commit: it is worth to be offered as soon as a checkpoint is committed, if that comes first.
        lacks: the abilities that the job is missing.
    """

    reason: str
    again_s: float = 0.0
    at_commit: bool = False
    lacks: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Ask:
    """The policy is not ftcore's own: the master's runtime asks it, and its answer comes as a fact.

    Args:
        within_s: seconds after which no answer counts as a pass.
    """

    within_s: float


Verdict: TypeAlias = Take | Pass


class Policy(Protocol):
    """A policy: a name, its options, what it needs, and the question.

    The chain passes over a policy whose ``needs`` are not all declared, with the reason, and does not ask it. It leaves
    out, without a word, one whose ``kinds`` hold neither the incident's kind (``fault``, ``warning``, ``request``,
    ``opportunity``) nor, for a request, what is asked for; ``interrupted`` stands for an incident of any kind once a
    plan has stopped workers and failed.

    ``conditions`` say in plain sentences when it takes an incident and when it passes: for ``ftctl policy explain``.
    """

    name: ClassVar[str]
    doc: ClassVar[str]
    conditions: ClassVar[tuple[str, ...]]
    kinds: ClassVar[tuple[str, ...]]
    options: ClassVar[type[Options]]
    needs: ClassVar[tuple[Ability, ...]]

    def considers(self, incident: IncidentState, job: JobState, options: Any) -> Verdict:
        """Take the incident or pass it on.

        Args:
            incident: the open incident; must not be changed.
            job: the folded state at the present event, whose ``time`` is now; must not be changed.
            options: the record of its options, with the values of the chain.
        """
