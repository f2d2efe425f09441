"""The machines of a campaign: which are there, which are on their way, which were given up, and under what names.

House rules: faults hit places, not names. A place has one machine; another one that comes for it is sound. It has the
old one's name, as long as that may come back, else one of its own. A launcher brings back what was lost; what the job
gave up comes back once somebody has repaired it.
"""

import attrs

from ftcore.commands import ReplaceNodes
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyLoaded
from ftcore.ids import seconds
from ftcore.sim.campaign.nodes import SimNode
from ftcore.sim.campaign.wheel import Sink, Wheel
from ftcore.sim.cost import Costs
from ftcore.sim.responder import answer
from ftcore.states.job import ENDED


@attrs.frozen(kw_only=True)
class Setting:
    """What is simulated.

    Args:
        spec: the job; ``nodes_max`` nodes are wanted.
        policy: the chain in force.
        days: virtual time.
        costs: what everything takes.
        slots: workers per node.
        abilities: what platform and script can do, by source, as ``ability.declared`` says it.
        fleet: nodes come by the trace alone, and no launcher brings them back.
    """

    spec: JobSpec
    policy: PolicyLoaded
    days: float
    costs: Costs = attrs.field(factory=Costs)
    slots: int = 8
    abilities: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    fleet: bool = False


class Machines(Wheel):
    """A wheel with machines.

    Args:
        setting: what is simulated.
        sinks: called with every group.
    """

    def __init__(self, setting: Setting, *sinks: Sink) -> None:
        super().__init__(*sinks)
        self.setting = setting
        self._nodes: dict[str, SimNode] = {}
        self._at: dict[int, SimNode] = {}
        self._coming: dict[int, int] = {}
        self._renamed: dict[int, int] = {}

    def _join(self, place: int, *, fresh: bool = False) -> None:
        """A sound machine joins at a place, in the name that the place has."""
        self._coming.pop(place, None)
        known = self._at.get(place)
        if known is not None and known.alive and not fresh:
            return
        name = self._name(place)
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = SimNode(name=name, place=place, slots=self.setting.slots)
        self._at[place] = node
        node.bad = None
        self._say(node, node.begin())

    def _name(self, place: int) -> str:
        """The place's name; another one once the old one is not to come back."""
        while True:
            count = self._renamed.get(place, 0)
            name = f"n{place:05d}" if count == 0 else f"n{place:05d}.{count}"
            known = self._nodes.get(name)
            if name not in self.state.quarantined and (known is None or not known.alive):
                return name
            self._renamed[place] = count + 1

    def _expect(self, place: int, delay_s: float, *, fresh: bool = False) -> None:
        """A machine is on its way to a place, unless one is already; a fresh one comes though the old one lives."""
        if place not in self._coming:
            due = self._coming[place] = self.now + seconds(delay_s)
            self._after(delay_s, lambda: self._comes(place, due, fresh))

    def _comes(self, place: int, due: int, fresh: bool) -> None:
        if self._coming.get(place) == due and self.state.phase not in ENDED:
            self._join(place, fresh=fresh)

    def _repaired(self, node: SimNode) -> None:
        node.bad = None
        if not node.alive and self._at.get(node.place) is node and not self.setting.fleet:
            self._expect(node.place, 0.0)

    def _gave_up(self, node: SimNode) -> None:
        """The job goes on without a machine; once somebody has repaired it, it comes back."""
        if node.bad is None and not self.setting.fleet:
            self._expect(node.place, self.setting.costs["repair"])

    def _replace(self, command: ReplaceNodes, effect: str) -> None:
        self._own(answer(command, effect, None))
        for name in command.nodes:
            known = self._nodes.get(name)
            if known is None:
                continue
            if command.isolate:
                self._renamed[known.place] = self._renamed.get(known.place, 0) + 1
            self._expect(known.place, self.setting.costs["replace"], fresh=True)
