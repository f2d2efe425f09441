"""What-if, asked with the chain that a job used, gives what the job's log holds."""

from collections.abc import Iterable

from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentExhausted, IncidentOpened, IncidentResolved
from ftcore.events.policy import AbilityDeclared, PolicyLoaded
from ftcore.sim.whatif.compare import Compared, WhatIf


def assert_reproduced(events: Iterable[Event]) -> list[Compared]:
    """Every incident has the same policies, the same duration and the same loss under both, to the millisecond.

    Incidents in which an ability was declared are left out: see ``ftcore.sim.whatif.compare``.

    Returns:
        The incidents compared; none if the log holds none that ended, or has had several chains.
    """
    log = list(events)
    changed = _with_other_abilities(log)
    chains = [event.data for event in log if isinstance(event.data, PolicyLoaded)]
    if any(chain != chains[0] for chain in chains):
        return []
    reader = WhatIf(chains[0])
    for event in log:
        reader.feed(event)
    try:
        compared = [one for one in reader.compared() if one.id not in changed]
    except UsageError:
        return []
    for one in compared:
        assert one.other == one.recorded, one
    return compared


def _with_other_abilities(log: Iterable[Event]) -> set[str]:
    """The incidents during which an ability was declared."""
    found, incident = set(), ""
    for event in log:
        if isinstance(event.data, IncidentOpened):
            incident = event.incident
        elif isinstance(event.data, IncidentResolved | IncidentExhausted):
            incident = ""
        elif isinstance(event.data, AbilityDeclared) and incident:
            found.add(incident)
    return found
