"""Machines of a campaign: present, expected and released ones, and their names.

Faults hit places, not names. A place has one machine; its replacement is healthy, and has the same name if that may be
used again, else a new one. A launcher restarts lost nodes; machines that the job released return after their repair.
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
class CampaignConfig:
    """Parameters of a campaign.

    Args:
        spec: the job, which has ``nodes_max`` nodes.
        policy: the chain.
        days: virtual time in days.
        costs: durations.
        slots: workers per node.
        abilities: abilities of platform and script, by source, as in ``ability.declared``.
        fleet: nodes join only by the trace; there is no launcher.
    """

    spec: JobSpec
    policy: PolicyLoaded
    days: float
    costs: Costs = attrs.field(factory=Costs)
    slots: int = 8
    abilities: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    fleet: bool = False


class MachineWheel(Wheel):
    """Simulation of the engine with machines.

    Args:
        setting: parameters.
        sinks: called with every group of events.
    """

    def __init__(self, setting: CampaignConfig, *sinks: Sink) -> None:
        super().__init__(*sinks)
        self.setting = setting
        self._nodes: dict[str, SimNode] = {}
        self._at: dict[int, SimNode] = {}
        self._coming: dict[int, int] = {}
        self._renamed: dict[int, int] = {}

    def _join(self, place: int, *, fresh: bool = False) -> None:
        """Let a healthy machine join at a place, under the place's name."""
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
        """The place's node name; a new one if the old one must not be used again."""
        while True:
            count = self._renamed.get(place, 0)
            name = f"n{place:05d}" if count == 0 else f"n{place:05d}.{count}"
            known = self._nodes.get(name)
            if name not in self.state.membership.quarantined and (known is None or not known.alive):
                return name
            self._renamed[place] = count + 1

    def _expect(self, place: int, delay_s: float, *, fresh: bool = False) -> None:
        """Schedule a machine for a place, unless one is scheduled; a fresh one joins even if the old one is alive."""
        if place not in self._coming:
            due = self._coming[place] = self.now + seconds(delay_s)
            self._after(delay_s, lambda: self._arrive(place, due, fresh))

    def _arrive(self, place: int, due: int, fresh: bool) -> None:
        if self._coming.get(place) == due and self.state.phase not in ENDED:
            self._join(place, fresh=fresh)

    def _repaired(self, node: SimNode) -> None:
        node.bad = None
        if not node.alive and self._at.get(node.place) is node and not self.setting.fleet:
            self._expect(node.place, 0.0)

    def _released(self, node: SimNode) -> None:
        """The job has released a machine; it returns after its repair."""
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
