"""State of the local platform: places, their agents, spare machines, scheduled starts. Pure.

``ftrun --local-nodes`` reports what happened, starts the agents that are due and ends those that ``launch`` returns.

Times are arguments, in seconds of any clock. A place has at most one current agent; a replaced agent that still runs is
*leaving*. A killed agent has lost its machine: with a limit (``capacity``), its successor needs a spare one. The name
of a cordoned node, or of a node replaced while its agent ran, is not used again: the job may have banned it.
"""

import attrs

from ftcore.errors import Refused
from ftcore.platforms.options import LocalOptions
from ftcore.ports import LaunchRequest, Occupant


@attrs.define(kw_only=True)
class Place:
    """A place of the job.

    Args:
        number: its ordinal.
        name: name of its current or next node.
        life: how often it was renamed.
        pid: process ID of its agent; 0: none runs.
        due: when its next agent starts; None: no start is scheduled.
        waits: it is filled as soon as a machine is free.
    """

    number: int
    name: str
    life: int = 0
    pid: int = 0
    due: float | None = None
    waits: bool = False


class Machines:
    """See the module.

    Args:
        nodes: number of places.
        name: prefix of node names, before the number of the place.
        options: options of the platform.
    """

    def __init__(self, nodes: int, name: str, options: LocalOptions) -> None:
        self.options = options
        self.places = [Place(number=number, name=f"{name}{number}", due=0.0) for number in range(nodes)]
        self.spare = options.capacity
        self._name = name
        self._numbers = {place.name: place.number for place in self.places}
        """Place numbers by node name, former names included: a job may have reassigned its ordinals."""
        self._leaving: dict[int, str] = {}
        self._repairs: list[float] = []
        self._effects: set[str] = set()
        self._cordoned: set[str] = set()

    # -- queries

    @property
    def pids(self) -> list[int]:
        """Process IDs of running agents, leaving ones included."""
        return [*(place.pid for place in self.places if place.pid), *self._leaving]

    def place_of(self, pid: int) -> Place | None:
        """The place of a current agent; None if the agent is leaving or unknown."""
        return next((place for place in self.places if pid and place.pid == pid), None)

    def name_of(self, pid: int) -> str:
        """The node name of an agent; empty if unknown."""
        place = self.place_of(pid)
        return place.name if place is not None else self._leaving.get(pid, "")

    def find(self, node: Occupant) -> int:
        """Process ID of the node's agent; 0 if it does not run."""
        named = [pid for pid in self.pids if self.name_of(pid) == node.node]
        return next((pid for pid in named if node.pid in (0, pid)), 0)

    # -- time

    def next_due(self) -> float | None:
        """Time of the next start or repair."""
        dues = [place.due for place in self.places if place.due is not None]
        return min([*dues, *self._repairs], default=None)

    def due(self, now: float) -> list[Place]:
        """Return repaired machines to the spares; returns the places whose agents must start now."""
        for time in [time for time in self._repairs if time <= now]:
            self._repairs.remove(time)
            self._release_machine(now)
        return [place for place in self.places if place.due is not None and place.due <= now]

    def started(self, place: Place, pid: int) -> None:
        """Note that a place's agent was started."""
        place.pid, place.due = pid, None

    # -- ends

    def lost(self, pid: int, now: float, after_s: float = 0.0) -> None:
        """Note that an agent was killed, or its machine preempted.

        Args:
            pid: process ID of the agent.
            now: the time.
            after_s: fewest seconds until its place is filled again.
        """
        if self._leaving.pop(pid, None) is not None:
            return  # its machine was counted when it was replaced
        place = self.place_of(pid)
        if place is None:
            return
        place.pid = 0
        self._schedule_repair(now)
        if self.options.fill:
            self._fill(place, now, after_s)

    def again(self, pid: int, now: float, after_s: float) -> None:
        """Note that an agent ended by itself; restart it on its machine."""
        place = self.place_of(pid)
        if place is None:
            self._leaving.pop(pid, None)
        else:
            place.pid, place.due = 0, now + after_s

    def left(self, pid: int, now: float) -> None:
        """Note that an agent was released by the job; its place stays empty until a node is requested for it."""
        if self._leaving.pop(pid, None) is not None:
            return
        place = self.place_of(pid)
        if place is not None:
            place.pid = 0
            self._release_machine(now)

    # -- orders

    def launch(self, request: LaunchRequest, now: float) -> list[int]:
        """Launch the nodes of a request.

        Returns:
            Agents to end, because only the platform knows of them.

        Raises:
            Refused: with the reason.
        """
        if request.effect in self._effects:
            return []
        if request.replaces is None:
            return self._add(request, now)
        effect, node = request.effect, request.replaces
        if node.node not in self._numbers:
            raise Refused(f"no node of this platform is called {node.node}")
        place = self.places[self._numbers[node.node]]
        banned = place.name in self._cordoned
        if place.due is not None:  # a start is scheduled already
            if banned:
                self._rename(place)
        elif place.pid and not banned and (place.name != node.node or node.pid not in (0, place.pid)):
            pass  # another agent runs there already
        else:
            return self._replace(effect, place, node, now)
        self._effects.add(effect)
        return []

    def _add(self, request: LaunchRequest, now: float) -> list[int]:
        if self.spare is not None and self.spare < request.count:
            raise Refused(f"{request.count} machines requested, {self.spare} free")
        for _ in range(request.count):
            place = next((p for p in self.places if not (p.pid or p.waits or p.due is not None)), None)
            if place is None:
                number = len(self.places)
                place = Place(number=number, name=f"{self._name}{number}")
                self.places.append(place)
                self._numbers[place.name] = number
            else:
                self._rename(place)  # the job has released or banned the node of that name
            self._fill(place, now)
        self._effects.add(request.effect)
        return []

    def _replace(self, effect: str, place: Place, node: Occupant, now: float) -> list[int]:
        if self.spare == 0:
            repair = f"; the next repair ends in {min(self._repairs) - now:.0f} s" if self._repairs else ""
            raise Refused(f"no machine is free{repair}")
        old, banned = place.pid, place.name in self._cordoned
        if old:
            self._leaving[old] = place.name
        if old or banned:
            self._rename(place)
        place.pid = 0
        self._fill(place, now)
        if old:
            self._schedule_repair(now)
        self._effects.add(effect)
        return [old] if old and node.pid not in (0, old) else []

    def cordon(self, node: Occupant) -> None:
        """Exclude a node's name and its machine until it is repaired."""
        self._cordoned.add(node.node)

    def admit(self, name: str, now: float) -> Place | None:
        """Undo a cordon. If the node's place is empty, fill it and return it."""
        self._cordoned.discard(name)
        place = next((place for place in self.places if place.name == name), None)
        if place is None or place.pid or place.due is not None:
            return None
        self._fill(place, now)
        return place

    def capacity(self) -> int | None:
        """Number of free machines; None: no limit."""
        return self.spare

    # -- machines

    def _rename(self, place: Place) -> None:
        place.life += 1
        place.name = f"{self._name}{place.number}.{place.life}"
        self._numbers[place.name] = place.number

    def _fill(self, place: Place, now: float, after_s: float = 0.0) -> None:
        if self.spare == 0:
            place.waits = True
            return
        if self.spare is not None:
            self.spare -= 1
        place.waits = False
        place.due = now + max(after_s, self.options.delay_s)

    def _schedule_repair(self, now: float) -> None:
        if self.spare is not None and self.options.repair_s is not None:
            self._repairs.append(now + self.options.repair_s)

    def _release_machine(self, now: float) -> None:
        """Assign a free machine to a waiting place, or add it to the spares."""
        if self.spare is None:
            return
        self.spare += 1
        waiting = next((place for place in self.places if place.waits), None)
        if waiting is not None:
            self._fill(waiting, now)
