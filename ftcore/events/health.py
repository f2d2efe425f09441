"""Events of health checks: the conclusion from the results of all nodes."""

from ftcore.events.payload import Payload
from ftcore.events.registry import decision


class UnhealthyNode(Payload, frozen=True, kw_only=True):
    """A node that is not clearly healthy.

    Args:
        node: its name.
        verdict: ``faulty`` (it takes part in no round), ``slow`` or ``unknown`` (it was not checked, or the check could
            not determine which node is at fault).
        reason: why.
    """

    node: str
    verdict: str
    reason: str


class BadLink(Payload, frozen=True, kw_only=True):
    """Healthy nodes that could not exchange data with each other.

    Args:
        nodes: the nodes; each exchanged data with other nodes.
        reason: what was found.
    """

    nodes: tuple[str, ...]
    reason: str


class BadGroup(Payload, frozen=True, kw_only=True):
    """Healthy nodes with a common label that fail to exchange data all at once, although each did in a pair.

    Args:
        label: the common label, for example ``switch=s1``.
        nodes: the first of these nodes.
        reason: what was found.
        others: number of further nodes.
    """

    label: str
    nodes: tuple[str, ...]
    reason: str
    others: int = 0


@decision("health.judged")
class HealthJudged(Payload, frozen=True, kw_only=True):
    """A health check has ended.

    Args:
        round: the round that follows the check.
        stages: number of stages; each groups the nodes anew.
        nodes: number of nodes that took part and are still in the job.
        ill: the first nodes that are not clearly healthy, faulty ones first.
        links: faulty links between healthy nodes.
        differing: settings that differ between nodes, as text.
        note: a remark on the check itself; empty: none.
        apart: groups of healthy nodes with a common label that fail all together.
        unmade: why the groups with a common label were not checked; empty if they were.
        again: further faulty nodes that ``ill`` does not name, as indexes of the checked nodes; they are checked again.
    """

    round: int
    stages: int
    nodes: int
    ill: tuple[UnhealthyNode, ...] = ()
    links: tuple[BadLink, ...] = ()
    differing: tuple[str, ...] = ()
    note: str = ""
    apart: tuple[BadGroup, ...] = ()
    unmade: str = ""
    again: tuple[int, ...] = ()
