"""Events of incidents: from the first evidence of a fault to the step that shows that it is over."""

from ftcore.events.payload import Payload
from ftcore.events.registry import decision


class Fault(Payload, frozen=True, kw_only=True):
    """The classification of the evidence.

    Args:
        cls: the class of the taxonomy (``docs/reference/faults.md``).
        detail: the finer distinction inside the class, for example ``sigkill``.
        nodes: affected nodes, the root cause first.
        ranks: affected ranks, the root cause first.
        root: seq of the fact that shows the root cause.
        collateral: seqs of facts that are consequences of it.
        step: the last step that the rank at fault completed, if known.
        absolute: that step counts from the start of the training.
        summary: one line of text.
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
class IncidentOpened(Payload, frozen=True, kw_only=True):
    """A fault, a request or an opportunity calls for a decision.

    Args:
        kind: ``fault``, ``request`` or ``opportunity``.
        fault: the first classification of the evidence.
        revision: 1.
    """

    kind: str
    fault: Fault
    revision: int = 1


@decision("incident.rediagnosed")
class IncidentRediagnosed(Payload, frozen=True, kw_only=True):
    """Further evidence changed the classification.

    Args:
        kind: ``fault``, or ``request`` if an operator requested the end meanwhile.
        fault: the new classification.
        revision: number of classifications that restarted the policy chain; unchanged if only details were added.
    """

    kind: str
    fault: Fault
    revision: int


@decision("incident.escalated")
class IncidentEscalated(Payload, frozen=True, kw_only=True):
    """The plan failed: the next policies of the chain are asked.

    Args:
        policy: the policy whose plan failed.
        reason: how it failed.
    """

    policy: str
    reason: str


@decision("incident.continued")
class IncidentContinued(Payload, frozen=True, kw_only=True):
    """The plan succeeded but does not resolve the incident: the next policies of the chain are asked.

    Args:
        policy: the policy of the plan.
        outcome: its outcome, for example ``saved`` or ``told``.
    """

    policy: str
    outcome: str


@decision("departure.deferred")
class DepartureDeferred(Payload, frozen=True, kw_only=True):
    """Nodes leave only when their replacements are ready; training continues meanwhile.

    Args:
        nodes: names of the nodes that leave.
        want: nodes of the next world; that many nodes, without the leaving ones, must be ready.
        patience_s: seconds to wait for them.
    """

    nodes: tuple[str, ...]
    want: int
    patience_s: float


@decision("departure.begun")
class DepartureBegun(Payload, frozen=True, kw_only=True):
    """A deferred departure begins: the workers are stopped, and the next round is without the leaving nodes.

    Args:
        nodes: names of the nodes that leave.
        ready: names of the standby nodes that are ready, at most 64; empty: none was ready in time, and the plan
            continues without.
    """

    nodes: tuple[str, ...]
    ready: tuple[str, ...]


@decision("incident.resolved")
class IncidentResolved(Payload, frozen=True, kw_only=True):
    """The plan succeeded: training continues, or the job ended as the policy decided.

    Args:
        policy: the policy of the plan.
        outcome: ``stepped``, ``settled`` (alive for ``settle_s``, no steps reported), ``finished``, ``ended``, or for
            requests ``paused``, ``resumed``, ``saved`` or ``released`` (a node that was only a spare, or has left; no
            plan was needed).
        steps_lost: completed steps that had to be computed again, if both step counts are absolute.
    """

    policy: str
    outcome: str
    steps_lost: int | None = None


@decision("incident.exhausted")
class IncidentExhausted(Payload, frozen=True, kw_only=True):
    """No policy took the incident or succeeded: a fault fails the job; a request or opportunity is dropped.

    Args:
        reason: the policies that were tried.
    """

    reason: str
