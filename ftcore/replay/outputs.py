"""Where the output of workers is, as far as the log knows: directories by round and node, and the hosts of the nodes.

``workers.started`` has the directory of a round's output on its node, since the release that added the field;
``worker.failed`` has that of the failed worker. What neither says is not invented: such a worker has no directory.
"""

import posixpath
from collections.abc import Iterator

import attrs

from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentOpened
from ftcore.events.node import NodeJoined
from ftcore.events.worker import WorkerFailed, WorkersStarted
from ftcore.replay.explain import Incident
from ftcore.states.model import JobState

ROUNDS_KEPT = 10_000
"""Newest rounds whose places are kept."""


@attrs.frozen(kw_only=True)
class WorkerOutput:
    """The output of one worker in one round.

    Args:
        round: the round.
        node: the node.
        host: its host; empty: not known.
        rank: the global rank.
        local_rank: its rank on the node; None: not known.
        directory: the directory on the host; empty: the log does not say it.
        order: place among the failures of the incident, from 0; None: it did not fail.
    """

    round: int
    node: str
    host: str
    rank: int
    local_rank: int | None
    directory: str
    order: int | None


@attrs.define
class _Round:
    members: list[tuple[str, int, int]] = attrs.field(factory=list)
    directories: dict[str, str] = attrs.field(factory=dict)
    failed: dict[int, str] = attrs.field(factory=dict)


class OutputPlaces:
    """A reader that collects the places of output; goes after the ``Folder`` of the same events.

    Args:
        state: the state that the folder changes in place.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._hosts: dict[str, str] = {}
        self._rounds: dict[int, _Round] = {}
        self._of_incident: dict[str, dict[int, None]] = {}

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        data = event.data
        if type(data) is NodeJoined:
            self._hosts[data.node] = data.host
        elif type(data) is WorkersStarted:
            self._started(data)
        elif type(data) is WorkerFailed:
            self._round(data.round).failed[data.rank] = data.log_dir
            if self._state.incident is not None:
                self._of_incident.setdefault(self._state.incident.id, {})[data.round] = None
        elif type(data) is IncidentOpened:
            rounds = self._of_incident.setdefault(str(event.incident), {})
            rounds |= {report.round: None for report in self._state.evidence.reports if report.round in self._rounds}
            if self._state.rounds.world is not None:
                rounds[self._state.rounds.world.round] = None

    def rounds(self, incident: str) -> list[int]:
        """The rounds of an incident: the one that it interrupted, and those that failed before it was over."""
        return sorted(self._of_incident.get(incident, ()))

    def of(self, incident: Incident) -> list[WorkerOutput]:
        """The output of all ranks of the incident's rounds: failed ranks first, in their order, then by rank."""
        order: dict[tuple[str, int | None], int] = {}
        for failure in incident.failures:
            order.setdefault((failure.node, failure.rank), len(order))
        for origin in incident.further:
            order.setdefault((str(origin.node), origin.rank), len(order))
        found = [output for number in self.rounds(incident.id) for output in self._of_round(number, order)]
        last = len(order)
        return sorted(found, key=lambda each: (last if each.order is None else each.order, each.round, each.rank))

    def _round(self, number: int) -> _Round:
        known = self._rounds.get(number)
        if known is None:
            known = self._rounds[number] = _Round()
            if len(self._rounds) > ROUNDS_KEPT:
                del self._rounds[next(iter(self._rounds))]
        return known

    def _started(self, data: WorkersStarted) -> None:
        round_, world = self._round(data.round), self._state.rounds.world
        round_.directories[data.node] = data.log_dir
        if world is not None and world.round == data.round and not round_.members:
            round_.members = [(member.node, member.base_rank, member.slots) for member in world.members]

    def _of_round(self, number: int, order: dict[tuple[str, int | None], int]) -> Iterator[WorkerOutput]:
        round_ = self._round(number)
        for node, base, slots in round_.members:
            for rank in range(base, base + slots):
                yield WorkerOutput(
                    round=number,
                    node=node,
                    host=self._hosts.get(node, ""),
                    rank=rank,
                    local_rank=rank - base,
                    directory=self._directory(round_, node, rank, base, slots),
                    order=order.get((node, rank)),
                )

    def _directory(self, round_: _Round, node: str, rank: int, base: int, slots: int) -> str:
        if own := round_.failed.get(rank):
            return own
        name = f"rank_{rank}"
        if round_.directories.get(node):
            return posixpath.join(round_.directories[node], name)
        for other in range(base, base + slots):  # the log of an earlier release: beside a failed worker of the node
            beside = round_.failed.get(other, "")
            if posixpath.basename(beside) == f"rank_{other}":
                return posixpath.join(posixpath.dirname(beside), name)
            if posixpath.basename(beside) == str(other - base):  # torchrun's layout
                return posixpath.join(posixpath.dirname(beside), str(rank - base))
        return ""
