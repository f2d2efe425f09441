"""When each node was there, and when it was in the world that trained."""

import attrs
import msgspec

from ftcore.events.envelope import Event
from ftcore.events.job import JobFinished
from ftcore.events.node import NodeJoined, NodeLeft, NodeLost
from ftcore.events.world import WorldFormed
from ftcore.states.model import JobState


@attrs.frozen(kw_only=True)
class Stay:
    """A stretch of time in which a node belonged to the job.

    Args:
        node: its name.
        slots: its workers, one per GPU.
        begin: nanoseconds since the epoch, the master's clock.
        end: likewise.
        member: it was in the newest world, or there was none yet and the whole job waited; else it waited alone.
    """

    node: str
    slots: int
    begin: int
    end: int
    member: bool


class SavedPresence(msgspec.Struct, frozen=True):
    """A ``Presence``: the stays that are over, and those that last."""

    done: list[Stay]
    open: list[Stay]


class Presence:
    """Collects the stays of nodes; the cost of an event does not depend on the number of nodes, but for a new world."""

    def __init__(self) -> None:
        self._done: list[Stay] = []
        self._open: dict[str, Stay] = {}

    def feed(self, event: Event, state: JobState) -> None:
        """Note an event.

        Args:
            event: the event.
            state: the folded state after it.
        """
        data = event.data
        if type(data) is NodeJoined:
            self._close(data.node, event.time)
            self._begin(data.node, data.slots, event.time, member=state.rounds.world is None)
        elif isinstance(data, NodeLeft | NodeLost):
            known = state.membership.nodes.get(data.node)
            if known is None or not known.alive:
                self._close(data.node, event.time)
        elif type(data) is WorldFormed and state.rounds.world is not None:
            members = {member.node for member in state.rounds.world.members}
            for node, stay in list(self._open.items()):
                if stay.member != (node in members):
                    self._close(node, event.time)
                    self._begin(node, stay.slots, event.time, member=node in members)
        elif type(data) is JobFinished:
            for node in list(self._open):
                self._close(node, event.time)

    def saved(self) -> SavedPresence:
        """The stays as a record, to continue from."""
        return SavedPresence(self._done, list(self._open.values()))

    @classmethod
    def restored(cls, saved: SavedPresence) -> "Presence":
        """The stays of a record."""
        presence = cls()
        presence._done, presence._open = saved.done, {stay.node: stay for stay in saved.open}
        return presence

    def stays(self, now: int) -> list[Stay]:
        """All stays, those that last until ``now`` in nanoseconds."""
        return [*self._done, *(attrs.evolve(stay, end=now) for stay in self._open.values())]

    def _begin(self, node: str, slots: int, time: int, *, member: bool) -> None:
        self._open[node] = Stay(node=node, slots=slots, begin=time, end=time, member=member)

    def _close(self, node: str, time: int) -> None:
        stay = self._open.pop(node, None)
        if stay is not None and time > stay.begin:
            self._done.append(attrs.evolve(stay, end=time))
