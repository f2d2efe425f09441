"""Events of health checks: what the results of all nodes together were taken to mean."""

import attrs

from ftcore.events.registry import decision


@attrs.frozen(kw_only=True)
class Ill:
    """A node that is not plainly healthy.

    Args:
        node: its name.
        verdict: ``faulty`` (it takes part in no round), ``slow`` or ``unknown`` (it was not checked, or nobody could
            tell whose fault it was).
        reason: why.
    """

    node: str
    verdict: str
    reason: str


@attrs.frozen(kw_only=True)
class BadLink:
    """Good nodes between which data did not pass.

    Args:
        nodes: the nodes; each exchanged data with others.
        reason: what was found.
    """

    nodes: tuple[str, ...]
    reason: str


@attrs.frozen(kw_only=True)
class BadGroup:
    """Good nodes under one label that do not exchange data all at once, although each did with another one.

    Args:
        label: what they have in common, as ``switch=s1``.
        nodes: the nodes, the first ones.
        reason: what was found.
        others: how many more they are.
    """

    label: str
    nodes: tuple[str, ...]
    reason: str
    others: int = 0


@decision("health.judged")
@attrs.frozen(kw_only=True)
class HealthJudged:
    """A health check is over.

    Args:
        round: the round before which it was made.
        stages: how many groupings it took.
        nodes: how many nodes took part and are still there.
        ill: those that are not plainly healthy, the first ones; the faulty come before the others.
        links: links at fault between nodes that are healthy.
        differing: what of the configuration is not equal on all nodes, in words.
        note: what the check has to say of itself, if anything.
        apart: groups under one label whose nodes are healthy, and fail all together.
        unmade: why no data was summed up under the labels of nodes, if it was not.
        again: those that are faulty, too, and not named, as places among the nodes asked: they are checked again.
    """

    round: int
    stages: int
    nodes: int
    ill: tuple[Ill, ...] = ()
    links: tuple[BadLink, ...] = ()
    differing: tuple[str, ...] = ()
    note: str = ""
    apart: tuple[BadGroup, ...] = ()
    unmade: str = ""
    again: tuple[int, ...] = ()
