"""Protocol of a platform, which launches and deletes nodes."""

from collections.abc import AsyncIterator, Mapping
from typing import Protocol, TypeAlias

import attrs


@attrs.frozen(kw_only=True)
class Occupant:
    """The node that holds a place of the job, or held it last.

    Args:
        node: the node's name.
        pid: process ID of its agent, which distinguishes it from later agents of the same name. 0: any agent.
        ordinal: its place, which a replacement requests with ``ftrun --node-rank``; None: unknown.
    """

    node: str
    pid: int = 0
    ordinal: int | None = None


@attrs.frozen(kw_only=True)
class LaunchRequest:
    """Nodes that a job requests from its platform.

    Args:
        effect: identity of the request, the same in every retry; it launches at most ``count`` nodes.
        argv: command line of a node, without the flags that differ between nodes (``--node-id``, ``--node-rank``,
            ``--node-labels``, ``--local-addr``); empty: unknown.
        count: number of nodes, 1 if they replace one.
        replaces: the node whose place the new node takes; None: the nodes are additional.
        resources: what each node provides: ``workers`` (processes) and ``accelerators`` (devices); empty: unknown.
        labels: labels of the replaced node (``--node-labels``), such as its switch, to place the new one near it.
    """

    effect: str
    argv: tuple[str, ...] = ()
    count: int = 1
    replaces: Occupant | None = None
    resources: Mapping[str, int] = attrs.field(factory=dict)
    labels: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class NodeEnded:
    """The platform reports that a node ended. This is faster and more reliable than the expiry of its lease.

    Args:
        node: its name.
        reason: how it ended, in a few words.
        pid: process ID of its agent; 0: unknown. Without it the report counts only if a single process has used the
            name in this job: otherwise it may concern an earlier process.
    """

    node: str
    reason: str
    pid: int = 0


@attrs.frozen(kw_only=True)
class NodeWarned:
    """The platform announces that it will end a node.

    Args:
        node: its name.
        reason: why, in a few words.
        within_s: seconds until then.
        pid: as in ``NodeEnded``.
    """

    node: str
    reason: str
    within_s: float
    pid: int = 0


@attrs.frozen(kw_only=True)
class MaintenanceAnnounced:
    """The platform will work on a node's machine, and the node continues afterwards, as in a live migration.

    Until ``MaintenanceOver``, policies may pause the training. Announce it shortly before it begins. Reports about the
    maintenance of one node arrive in order, and a new watcher gets the last one.

    Args:
        node: its name.
        reason: what is done, in a few words.
        within_s: seconds until it begins.
        pid: as in ``NodeEnded``.
    """

    node: str
    reason: str
    within_s: float = 0.0
    pid: int = 0


@attrs.frozen(kw_only=True)
class MaintenanceOver:
    """The maintenance of a node's machine is over, or was cancelled.

    Args:
        node: its name.
        reason: how it ended, in a few words; may be empty.
        pid: as in ``NodeEnded``.
    """

    node: str
    reason: str = ""
    pid: int = 0


@attrs.frozen(kw_only=True)
class CapacityChanged:
    """The number of nodes that can be launched has changed.

    Args:
        free: nodes that can be launched now; None: unknown.
    """

    free: int | None


PlatformEvent: TypeAlias = NodeEnded | NodeWarned | MaintenanceAnnounced | MaintenanceOver | CapacityChanged


class Platform(Protocol):
    """Launches nodes. Each node is a process that runs ``ftrun`` for this job under a unique name.

    The master requests only what its log records. It repeats a request that was not answered, in later terms too, with
    the same effect ID. All methods must therefore be idempotent.

    Raised by all methods: ``Unreachable`` when the platform does not answer; the master retries.
    """

    async def capacity(self) -> int | None:
        """The number of nodes that can be launched now; None: unknown, so the master tries."""

    async def launch(self, request: LaunchRequest) -> None:
        """Request nodes; returns once the platform has accepted, before they run.

        A replacement uses another machine if that of the replaced node is cordoned, and another name while that node
        may still run. One effect launches its nodes once. If the platform has already filled the place again, do
        nothing.

        Args:
            request: which nodes.

        Raises:
            Refused: the platform launches none of them, with the reason, as ``no machine is free``.
        """

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """Begin to end a node; no error if it has ended. Returns at once.

        Args:
            place: the node.
            grace_s: grace period in seconds; 0: end it now, as it may be frozen.
        """

    async def cordon(self, place: Occupant, reason: str) -> None:
        """Exclude a node's machine and name from later launches.

        Args:
            place: the node.
            reason: why, shown to operators.
        """

    def watch(self) -> AsyncIterator[PlatformEvent]:
        """Changes of nodes and capacity, starting with the current state; ends only by raising ``Unreachable``.

        Delivers at least once: repeats are allowed, gaps are not.
        """

    async def close(self) -> None:
        """Release resources of this object; the nodes keep running."""
