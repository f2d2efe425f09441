"""What other built-in presets would have cost in one incident; see ``compare.py`` for the rules."""

import attrs

from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.policies.file.config import preset
from ftcore.policies.file.presets import names
from ftcore.sim.whatif.compare import WhatIf


@attrs.frozen(kw_only=True)
class PresetCost:
    """An estimate for one preset.

    Args:
        preset: its name.
        downtime_s: seconds until training resumed.
        steps_lost: steps to repeat.
        policies_taken: the policies that take the incident, in order.
        as_recorded: the preset takes the plans that were taken.
    """

    preset: str
    downtime_s: float
    steps_lost: float
    policies_taken: tuple[str, ...]
    as_recorded: bool


class PresetPrices:
    """A reader that asks every preset about every incident."""

    def __init__(self) -> None:
        self._readers = {name: WhatIf(preset(name)) for name in names()}

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        for reader in self._readers.values():
            reader.feed(event)

    def of(self, incident: str) -> list[PresetCost]:
        """The estimates for an incident, the cheapest first; empty if it has not ended."""
        return self.by_incident().get(incident, [])

    def by_incident(self) -> dict[str, list[PresetCost]]:
        """The estimates for every incident that has ended, the cheapest first."""
        found: dict[str, list[PresetCost]] = {}
        for name, reader in self._readers.items():
            try:
                compared = reader.compared()
            except UsageError:
                return {}
            for each in compared:
                other = each.other
                found.setdefault(each.id, []).append(
                    PresetCost(
                        preset=name,
                        downtime_s=round(other.seconds, 3),
                        steps_lost=round(other.steps_lost, 1),
                        policies_taken=tuple(dict.fromkeys(policy for policy, _ in other.policies)),
                        as_recorded=other == each.recorded,
                    )
                )
        return {
            name: sorted(costs, key=lambda cost: (cost.downtime_s, cost.steps_lost)) for name, costs in found.items()
        }
