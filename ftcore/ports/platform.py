"""Where nodes come from."""

from collections.abc import AsyncIterator
from typing import Protocol, TypeAlias

import attrs


@attrs.frozen(kw_only=True)
class Occupant:
    """Who holds a place of the job, or held it last.

    Args:
        node: the node's name.
        pid: process id of its agent, on its host; a newer agent of that name is another one. 0: whoever has the name.
        ordinal: its place, which a newcomer is to ask for (``ftrun --node-rank``); None: none is known.
    """

    node: str
    pid: int = 0
    ordinal: int | None = None


@attrs.frozen(kw_only=True)
class NodeEnded:
    """The platform knows that a node is gone: sooner, and more surely, than its lease tells.

    Args:
        node: its name.
        reason: how it ended, in a few words.
        pid: process id of its agent; 0: not known. Then it counts only while one process alone has had the name in this
            job: of a name that came back, the end that is told may be that of the one before.
    """

    node: str
    reason: str
    pid: int = 0


@attrs.frozen(kw_only=True)
class NodeWarned:
    """The platform will take a node away.

    Args:
        node: its name.
        reason: why, in a few words.
        within_s: seconds that it has left.
        pid: as in ``NodeEnded``.
    """

    node: str
    reason: str
    within_s: float
    pid: int = 0


@attrs.frozen(kw_only=True)
class CapacityChanged:
    """How many nodes could be launched now.

    Args:
        free: so many; None: the platform cannot tell.
    """

    free: int | None


Happening: TypeAlias = NodeEnded | NodeWarned | CapacityChanged


class Platform(Protocol):
    """What launches nodes: one process each that runs ``ftrun`` for this job, under a name of its own.

    The master asks for nothing that does not stand in its log, and asks again whenever it did not hear the answer, in
    the next term under the same effect. So every order must be safe to repeat: what was done is not done again.

    Raised by all methods: ``Unreachable`` when the platform does not answer (it is asked again).
    """

    async def capacity(self) -> int | None:
        """How many nodes could be launched now; None: the platform cannot tell, so try."""

    async def launch(self, effect: str, place: Occupant) -> None:
        """Have a node come for a place; returns once the platform has taken the order, before the node is there.

        The newcomer is a machine of its own: another one than that of the node given up if it was cordoned, and under
        another name as long as the old one may still be there. One effect brings at most one node, however often it is
        asked for; for a place that the platform has filled anew by itself there is nothing to do.

        Args:
            effect: identity of the launch, the same whenever it is asked for again.
            place: the node given up.

        Raises:
            Refused: it will not, with the reason, as ``no machine is free``.
        """

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """End a node that was given up; harmless if it is gone. Returns at once.

        Args:
            place: the node.
            grace_s: seconds that it has to leave by itself; 0: it is ended now, as it may be frozen.
        """

    async def cordon(self, place: Occupant, reason: str) -> None:
        """Keep the machine of a node from being chosen again, and its name from being used again.

        Args:
            place: the node.
            reason: why, for people.
        """

    def watch(self) -> AsyncIterator[Happening]:
        """What happens to nodes and capacity, beginning with what is so now; ends only by raising ``Unreachable``.

        What may have been missed is told again: repeats are harmless, gaps are not.
        """

    async def close(self) -> None:
        """Release what this object holds; the nodes stay."""
