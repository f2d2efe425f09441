"""Events of incidents: from the first sign of a fault to the step that shows it is over."""

import attrs

from ftcore.events.registry import decision


@attrs.frozen(kw_only=True)
class Fault:
    """What the evidence was taken to mean.

    Args:
        cls: the class of the taxonomy (``docs/reference/faults.md``).
        detail: the finer distinction inside the class, as ``sigkill``.
        nodes: nodes named by it, the culprit first.
        ranks: ranks named by it, the culprit first.
        root: seq of the fact that shows the cause.
        collateral: seqs of facts that are consequences of it.
        step: the last step that the culprit completed, if known.
        absolute: that step counts from the start of the training.
        summary: one line for people.
    """

    cls: str
    detail: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    root: int
    summary: str
    collateral: tuple[int, ...] = ()
    step: int | None = None
    absolute: bool = False


@decision("incident.opened")
@attrs.frozen(kw_only=True)
class IncidentOpened:
    """Something interrupts the training.

    Args:
        kind: ``fault``, ``request`` or ``opportunity``.
        fault: the first reading of the evidence.
        revision: 1.
    """

    kind: str
    fault: Fault
    revision: int = 1


@decision("incident.rediagnosed")
@attrs.frozen(kw_only=True)
class IncidentRediagnosed:
    """More evidence changed the reading.

    Args:
        kind: ``fault``, or ``request`` if somebody asked for the end meanwhile.
        fault: the new reading.
        revision: counts the readings that made the chain start again; unchanged if only details were added.
    """

    kind: str
    fault: Fault
    revision: int


@decision("incident.escalated")
@attrs.frozen(kw_only=True)
class IncidentEscalated:
    """The plan that was taken did not bring its outcome; the next policies of the chain are asked.

    Args:
        policy: the policy whose plan failed.
        reason: how.
    """

    policy: str
    reason: str


@decision("incident.continued")
@attrs.frozen(kw_only=True)
class IncidentContinued:
    """The plan did what it is there for, which is not the end of the incident: the next policies are asked.

    Args:
        policy: the policy whose plan it was.
        outcome: what it brought, as ``saved`` or ``told``.
    """

    policy: str
    outcome: str


@decision("departure.deferred")
@attrs.frozen(kw_only=True)
class DepartureDeferred:
    """Nodes that still train are to leave once others are ready for their places; training goes on meanwhile.

    Args:
        nodes: names of those that leave.
        want: nodes of the world to come: so many others must be ready.
        patience_s: seconds that are waited for them.
    """

    nodes: tuple[str, ...]
    want: int
    patience_s: float


@decision("departure.begun")
@attrs.frozen(kw_only=True)
class DepartureBegun:
    """What was deferred is carried out: the workers are stopped for the round without the nodes that leave.

    Args:
        nodes: names of those that leave.
        ready: names of nodes that stand by and are ready, at most 64; empty: none was in time, and the plan can do
            without.
    """

    nodes: tuple[str, ...]
    ready: tuple[str, ...]


@decision("incident.resolved")
@attrs.frozen(kw_only=True)
class IncidentResolved:
    """The outcome was reached: training goes on (or the job ended as the policy wanted).

    Args:
        policy: the policy that did it.
        outcome: ``stepped``, ``settled`` (alive for ``settle_s``, no steps reported), ``finished``, ``ended``, or for
            requests ``paused``, ``resumed``, ``saved`` or ``released`` (a node that only stood by, or is gone; nobody's
            plan).
        steps_lost: completed steps that had to be done again, if both step counts are absolute.
    """

    policy: str
    outcome: str
    steps_lost: int | None = None


@decision("incident.exhausted")
@attrs.frozen(kw_only=True)
class IncidentExhausted:
    """No policy of the chain took it or succeeded: a fault fails the job; a request or opportunity is dropped.

    Args:
        reason: what was tried.
    """

    reason: str
