"""What a policy is: a pure question and a declared plan.

A policy is asked about an incident and answers ``Take`` (with the plan that it wants carried out) or ``Pass`` (with the
reason). It performs nothing, remembers nothing and reads nothing but its arguments; budgets and back-off live in the
folded state, so they survive the master. Every answer becomes a ``policy.considered`` event.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeAlias

import attrs

from ftcore.states.model import IncidentState, JobState


class PlanKind(StrEnum):
    """What the master can carry out."""

    RESTART = "restart"
    """Stop all workers, form the next round of the nodes there are, start its workers; outcome: a step is completed."""
    END = "end"
    """Stop all workers, then end the job."""


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
    """

    plan: PlanKind
    reason: str
    grace_s: float
    wait_s: float = 0.0
    deadline_s: float = 0.0
    attempt: int | None = None
    outcome: str = ""
    exit_code: int = 0


@attrs.frozen(kw_only=True)
class Pass:
    """The policy does not take the incident.

    Args:
        reason: why, for people.
    """

    reason: str


Verdict: TypeAlias = Take | Pass


@attrs.frozen(kw_only=True)
class Option:
    """One option of a policy, as a user may set it.

    Args:
        default: its value where the file says nothing.
        kind: ``int``, ``duration`` (seconds as a number, or text like ``90s``, ``5m``, ``1h``) or ``number``.
        minimum: the smallest value that makes sense.
        maximum: the largest, or None.
        doc: one sentence.
    """

    default: float
    kind: str
    doc: str
    minimum: float = 0
    maximum: float | None = None


class Policy(Protocol):
    """A policy: a name, its options, and the question."""

    name: ClassVar[str]
    doc: ClassVar[str]
    options: ClassVar[Mapping[str, Option]]

    def considers(self, incident: IncidentState, job: JobState, options: Mapping[str, Any]) -> Verdict:
        """Take the incident or pass it on.

        Args:
            incident: the open incident; must not be changed.
            job: the folded state at the present event, whose ``time`` is now; must not be changed.
            options: every option of ``options`` with its value.
        """
