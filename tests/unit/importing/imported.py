"""Imports files in a test, and reads the log."""

from pathlib import Path

import attrs

from ftcore.events.envelope import Event
from ftcore.events.worker import FaultObserved, WorkerFailed
from ftcore.importing.read import ImportedLog, compose, read_story
from ftcore.replay import verify
from ftcore.replay.explain import Explainer, Incident

DATA = Path(__file__).parents[2] / "data" / "import"


@attrs.frozen(kw_only=True)
class Import:
    """An import and its log."""

    found: ImportedLog
    events: list[Event]

    @property
    def incidents(self) -> list[Incident]:
        explainer = Explainer()
        for event in self.events:
            explainer.feed(event)
        return explainer.incidents()

    @property
    def failure(self) -> Event:
        """The fact at the root of the first incident."""
        faults = [event for event in self.events if event.type in ("incident.opened", "incident.rediagnosed")]
        root = [event.data.fault.root for event in faults if event.incident == faults[0].incident][-1]
        return next(event for event in self.events if event.seq == root)

    @property
    def state_step(self) -> int | None:
        """The newest completed step at the end of the log."""
        return self.found.state.training.step

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.type == name]

    def cited(self, event: Event) -> Event:
        """The ``source.cited`` of a fact."""
        assert event.cause is not None
        cited = self.events[event.cause - 1]
        assert cited.type == "source.cited"
        return cited


def imported(*paths: Path | str, source: str | None = None, step: str | None = None) -> Import:
    """Import files; every decision in the log is the one that the engine makes again."""
    events: list[Event] = []
    found = read_story([str(path) for path in paths], source=source, step=step)
    compose(found, events.extend)
    report = verify(events)
    assert report.ok, report.mismatches
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return Import(found=found, events=events)


def rank_at_root(result: Import) -> int:
    """The rank at the root of the first incident."""
    data = result.failure.data
    assert isinstance(data, WorkerFailed | FaultObserved)
    return data.rank
