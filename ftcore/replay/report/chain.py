"""The policy file of a report, and what each entry of its chain did."""

from collections import Counter
from typing import Any, Final

import attrs
import msgspec

from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentContinued, IncidentEscalated, IncidentResolved
from ftcore.events.policy import ChainEntry, PolicyConsidered, PolicyFaulted, PolicyLoaded
from ftcore.policies.targets import hidden
from ftcore.replay.report.limits import POLICY_MAX
from ftcore.replay.report.text import line, several_lines

REASONS_MAX = 200
"""Distinct reasons of a policy that are counted."""

REASONS_SHOWN = 4


@attrs.define
class _Record:
    """What a policy did."""

    taken: int = 0
    passed: int = 0
    resolved: int = 0
    went_on: int = 0
    failed: int = 0
    faulted: int = 0
    reasons: Counter[tuple[str, str]] = attrs.field(factory=Counter)


class ChainRecord:
    """Counts the answers and outcomes of policies, and keeps the newest policy file."""

    READS: Final = frozenset(
        {PolicyLoaded, PolicyConsidered, IncidentResolved, IncidentContinued, IncidentEscalated, PolicyFaulted}
    )

    def __init__(self) -> None:
        self._loaded: PolicyLoaded | None = None
        self._files = 0
        self._records: dict[str, _Record] = {}

    def feed(self, event: Event) -> None:
        """Note an event."""
        data = event.data
        if type(data) is PolicyLoaded:
            self._loaded = data
            self._files += 1
        elif type(data) is PolicyConsidered:
            record = self._of(data.policy)
            record.taken += data.verdict == "take"
            record.passed += data.verdict != "take"
            reason = (data.verdict, line(data.reason))
            if reason in record.reasons or len(record.reasons) < REASONS_MAX:
                record.reasons[reason] += 1
        elif type(data) is IncidentResolved:
            self._of(data.policy).resolved += 1
        elif type(data) is IncidentContinued:
            self._of(data.policy).went_on += 1
        elif type(data) is IncidentEscalated:
            self._of(data.policy).failed += 1
        elif type(data) is PolicyFaulted:
            self._of(data.policy).faulted += 1

    def _of(self, policy: str) -> _Record:
        return self._records.setdefault(policy, _Record())

    def to_json(self) -> dict[str, Any] | None:
        """Plain JSON values, URLs reduced to their scheme; None: the log has no policy yet."""
        loaded = self._loaded
        if loaded is None:
            return None
        entries = [self._entry(entry) for entry in loaded.chain]
        named = {entry.policy for entry in loaded.chain}
        earlier = [self._record(name) for name in self._records if name and name not in named]
        return {
            "source": line(loaded.source),
            "text": several_lines(str(hidden(loaded.text)), POLICY_MAX),
            "digest": loaded.digest[:16],
            "file_count": self._files,
            "entries": entries,
            "earlier": earlier,
        }

    def _entry(self, entry: ChainEntry) -> dict[str, Any]:
        options = {name: _shown(value) for name, value in hidden(entry.options).items()}
        return {
            **self._record(entry.policy),
            "options": options,
            "faults": list(entry.faults),
            "external": line(entry.external),
        }

    def _record(self, policy: str) -> dict[str, Any]:
        record = self._records.get(policy, _Record())
        return {
            "policy": line(policy),
            "taken": record.taken,
            "passed": record.passed,
            "resolved": record.resolved,
            "went_on": record.went_on,
            "failed": record.failed,
            "faulted": record.faulted,
            "reasons": [
                {"verdict": verdict, "reason": reason, "count": count}
                for (verdict, reason), count in record.reasons.most_common(REASONS_SHOWN)
            ],
        }


def _shown(value: Any) -> str:
    return line(value if isinstance(value, str) else msgspec.json.encode(value).decode(), 200)
