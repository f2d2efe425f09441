"""The machines of the local platform: which place has which agent, what is spare, what comes when. Pure.

``ftrun --local-nodes`` tells it what happened and when, starts what is due and ends what it is told to.

House rules: time arrives as an argument, in seconds of any clock. A place has at most one agent that counts; one that
was given up and is not gone yet is *leaving*. An agent that was killed has lost its machine; where machines are bounded
(``capacity``) its successor needs a spare one. A name that was given up while its agent lived, or was cordoned, is not
used again: the job may have banned it.
"""

import attrs

from ftcore.errors import Refused
from ftcore.platforms.options import LocalOptions
from ftcore.ports import Occupant


@attrs.define(kw_only=True)
class Place:
    """A place of the job.

    Args:
        number: its ordinal.
        name: of its node, now or to come.
        life: how often it was renamed.
        pid: of its agent; 0: none runs.
        due: when its next agent is to be started; None: none is on its way.
        waits: it is to be filled as soon as a machine is free.
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
        nodes: places.
        name: what nodes are called, before the number of their place.
        options: of the platform.
    """

    def __init__(self, nodes: int, name: str, options: LocalOptions) -> None:
        self.options = options
        self.places = [Place(number=number, name=f"{name}{number}", due=0.0) for number in range(nodes)]
        self.spare = options.capacity
        self._name = name
        self._numbers = {place.name: place.number for place in self.places}
        """By name, also of those that were given up: a job may have dealt its ordinals out anew."""
        self._leaving: dict[int, str] = {}
        self._repairs: list[float] = []
        self._effects: set[str] = set()
        self._cordoned: set[str] = set()

    # -- what is so

    @property
    def pids(self) -> list[int]:
        """Agents that run, those that are leaving included."""
        return [*(place.pid for place in self.places if place.pid), *self._leaving]

    @property
    def at_rest(self) -> bool:
        """No agent runs, and none is on its way."""
        return not self.pids and all(place.due is None for place in self.places)

    def place_of(self, pid: int) -> Place | None:
        """The place whose agent that is; None if it is leaving, or not known."""
        return next((place for place in self.places if pid and place.pid == pid), None)

    def name_of(self, pid: int) -> str:
        """The node that an agent plays; empty if it is not known."""
        place = self.place_of(pid)
        return place.name if place is not None else self._leaving.get(pid, "")

    def find(self, who: Occupant) -> int:
        """The agent that is meant, if it runs; else 0."""
        named = [pid for pid in self.pids if self.name_of(pid) == who.node]
        return next((pid for pid in named if who.pid in (0, pid)), 0)

    # -- time

    def next_due(self) -> float | None:
        """When something is due next."""
        dues = [place.due for place in self.places if place.due is not None]
        return min([*dues, *self._repairs], default=None)

    def due(self, now: float) -> list[Place]:
        """The places whose agents are to be started now; machines that were repaired are spare again."""
        for time in [time for time in self._repairs if time <= now]:
            self._repairs.remove(time)
            self._give_back(now)
        return [place for place in self.places if place.due is not None and place.due <= now]

    def started(self, place: Place, pid: int) -> None:
        """A place's agent runs."""
        place.pid, place.due = pid, None

    # -- ends

    def lost(self, pid: int, now: float, after_s: float = 0.0) -> None:
        """An agent was killed, or its machine taken away.

        Args:
            pid: the agent.
            now: the time.
            after_s: seconds that its place waits before it is filled, at the least.
        """
        if self._leaving.pop(pid, None) is not None:
            return  # its machine was counted when it was given up
        place = self.place_of(pid)
        if place is None:
            return
        place.pid = 0
        self._to_be_repaired(now)
        if self.options.fill:
            self._fill(place, now, after_s)

    def again(self, pid: int, now: float, after_s: float) -> None:
        """An agent ended by itself, and is to be started anew on its machine."""
        place = self.place_of(pid)
        if place is None:
            self._leaving.pop(pid, None)
        else:
            place.pid, place.due = 0, now + after_s

    def left(self, pid: int, now: float) -> None:
        """An agent ended for good: the job has let it go, and its place stays empty until somebody is wanted there."""
        if self._leaving.pop(pid, None) is not None:
            return
        place = self.place_of(pid)
        if place is not None:
            place.pid = 0
            self._give_back(now)

    # -- orders

    def launch(self, effect: str, who: Occupant, now: float) -> list[int]:
        """Have somebody come for a place.

        Returns:
            Agents that have to end, because nobody but the platform knows of them.

        Raises:
            Refused: with the reason.
        """
        if effect in self._effects:
            return []
        if who.node not in self._numbers:
            raise Refused(f"no node of this platform is called {who.node}")
        place = self.places[self._numbers[who.node]]
        banned = place.name in self._cordoned
        if place.due is not None:  # on its way already
            if banned:
                self._rename(place)
        elif place.pid and not banned and (place.name != who.node or who.pid not in (0, place.pid)):
            pass  # somebody else is there already
        else:
            return self._replace(effect, place, who, now)
        self._effects.add(effect)
        return []

    def _replace(self, effect: str, place: Place, who: Occupant, now: float) -> list[int]:
        if self.spare == 0:
            back = f"; one is repaired in {min(self._repairs) - now:.0f} s" if self._repairs else ""
            raise Refused(f"no machine is free{back}")
        old, banned = place.pid, place.name in self._cordoned
        if old:
            self._leaving[old] = place.name
        if old or banned:
            self._rename(place)
        place.pid = 0
        self._fill(place, now)
        if old:
            self._to_be_repaired(now)
        self._effects.add(effect)
        return [old] if old and who.pid not in (0, old) else []

    def cordon(self, who: Occupant) -> None:
        """Do not use that name again; the machine is repaired first."""
        self._cordoned.add(who.node)

    def admit(self, name: str, now: float) -> Place | None:
        """Somebody trusts a node again: it comes back if its place is empty. Returns its place then."""
        self._cordoned.discard(name)
        place = next((place for place in self.places if place.name == name), None)
        if place is None or place.pid or place.due is not None:
            return None
        self._fill(place, now)
        return place

    def capacity(self) -> int | None:
        """Machines that are free."""
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

    def _to_be_repaired(self, now: float) -> None:
        if self.spare is not None and self.options.repair_s is not None:
            self._repairs.append(now + self.options.repair_s)

    def _give_back(self, now: float) -> None:
        """A machine is free: for who waits for one, else it is a spare one."""
        if self.spare is None:
            return
        self.spare += 1
        waiting = next((place for place in self.places if place.waits), None)
        if waiting is not None:
            self._fill(waiting, now)
