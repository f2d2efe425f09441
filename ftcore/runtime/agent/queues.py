"""The agent's part in data queues: reports of its node's readers become facts, data shards go to the readers.

House rules: reports of many steps and of all readers of the node are one fact. A reader that waits for data shards is
reported at once. Leases are kept until they are used up: a worker that connects to a new keeper gets them again.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import msgspec

from ftcore.events.queue import DataLease, QueueMark, QueueOpened, QueueReported, QueueSpec, ReaderReport
from ftcore.ids import Round
from ftcore.runtime.keeper.queues import merge_marks
from ftcore.runtime.wire.queue_news import QueueNews

SOON_S: Final = 0.02
"""How long a reader's request waits for those of the node's other readers, in seconds."""

FIRST_S: Final = 1.0
"""How long the first progress of a reader in a round waits, in seconds: it tells the reader's pace."""

REPORT_S: Final = 10.0
"""How long later progress waits, in seconds."""

Place = tuple[str, int]
"""Queue and round."""


@attrs.define
class _WaitingReport:
    want: int = 0
    marks: list[Any] = attrs.field(factory=list)
    closed: bool = False


@attrs.define
class _LeasedShards:
    leases: list[DataLease] = attrs.field(factory=list)
    over: bool = False


class NodeQueues:
    """Data queues of one node.

    Args:
        lease: hands a message with data shards to the keeper.
    """

    def __init__(self, lease: Callable[[dict[str, Any]], None]) -> None:
        self._lease = lease
        self._record: Callable[[Any], None] = lambda fact: None
        self._who: Callable[[], tuple[str, str]] = lambda: ("", "")
        self._when_joined: Callable[[Callable[[], None]], None] = lambda report: report()
        self._opened: dict[Place, dict[tuple[QueueSpec, int], list[int]]] = {}
        self._readers: dict[Place, dict[int, _WaitingReport]] = {}
        self._leased: dict[Place, dict[int, _LeasedShards]] = {}
        self._paced: set[tuple[Place, int]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def attach(
        self,
        record: Callable[[Any], None],
        who: Callable[[], tuple[str, str]],
        when_joined: Callable[[Callable[[], None]], None],
    ) -> None:
        """See ``NodeCheckpoints.attach``; ``when_joined`` calls a function once the agent has joined."""
        self._record, self._who, self._when_joined = record, who, when_joined

    def take(self, message: Mapping[str, Any]) -> None:
        """A worker reports; see ``keeper.queues`` for the message."""
        place, rank = (str(message["queue"]), int(message["round"])), int(message["rank"])
        reader = self._readers.setdefault(place, {}).setdefault(rank, _WaitingReport())
        merge_marks(reader.marks, message.get("marks", ()))
        reader.want = max(reader.want, int(message.get("want", 0)))
        reader.closed = bool(message.get("closed"))
        if "open" in message:
            spec = msgspec.convert(message["open"], QueueSpec)
            ranks = self._opened.setdefault(place, {}).setdefault((spec, int(message["step"])), [])
            if rank not in ranks:
                ranks.append(rank)
            self._leased = {each: of for each, of in self._leased.items() if each[1] >= place[1]}
            self._paced = {each for each in self._paced if each[0][1] >= place[1]}
            if rank in self._leased.get(place, {}):
                self._hand(place, rank, self._leased[place][rank])
        if reader.marks and rank in self._leased.get(place, {}):
            of, done = self._leased[place][rank], reader.marks[-1][1]
            of.leases = [each for each in of.leases if each.at + each.after - each.first > done]
        if "open" in message or "want" in message:
            self._flush_within(SOON_S)
        else:
            self._flush_within(REPORT_S if (place, rank) in self._paced else FIRST_S)

    @property
    def used(self) -> bool:
        """Whether workers of this node read data queues."""
        return bool(self._leased)

    def _flush_within(self, within_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + within_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(within_s, self._when_joined, self.flush)

    def flush(self) -> None:
        """Record what the readers have reported."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        opened, self._opened = self._opened, {}
        readers, self._readers = self._readers, {}
        node, life = self._who()
        for (queue, round_), specs in opened.items():
            for (spec, step), ranks in specs.items():
                about: dict[str, Any] = {"node": node, "incarnation": life, "round": Round(round_), "queue": queue}
                self._record(QueueOpened(**about, spec=spec, step=step, ranks=tuple(sorted(ranks))))
        for (queue, round_), reports in readers.items():
            told = tuple(_report(rank, each) for rank, each in sorted(reports.items()))
            self._paced |= {((queue, round_), each.rank) for each in told if each.marks}
            about = {"node": node, "incarnation": life, "round": Round(round_), "queue": queue}
            self._record(QueueReported(**about, readers=told))

    def told(self, frame: QueueNews) -> None:
        """The master has decided on data shards of readers of this node."""
        place = (frame.queue, int(frame.round))
        for rank in frame.refused:
            about = {"queue": frame.queue, "round": frame.round, "rank": rank}
            self._lease({**about, "leases": [], "over": False, "refused": frame.reason})
        news: dict[int, _LeasedShards] = {}
        for each in frame.leases:
            news.setdefault(each.rank, _LeasedShards()).leases.append(each)
        for rank in frame.over:
            news.setdefault(rank, _LeasedShards()).over = True
        for rank, new in news.items():
            known = self._leased.setdefault(place, {}).setdefault(rank, _LeasedShards())
            ends = max((each.at + each.after - each.first for each in known.leases), default=0)
            known.leases += [each for each in new.leases if each.at >= ends]
            known.over = known.over or new.over
            self._hand(place, rank, new)

    def _hand(self, place: Place, rank: int, given: _LeasedShards) -> None:
        leases = [[each.at, each.first, each.after, each.offset] for each in given.leases]
        about = {"queue": place[0], "round": place[1], "rank": rank}
        self._lease({**about, "leases": leases, "over": given.over, "refused": ""})


def _report(rank: int, reader: _WaitingReport) -> ReaderReport:
    marks = tuple(QueueMark(step=each[0], done=each[1], offset=each[2], rate=each[3]) for each in reader.marks)
    return ReaderReport(rank=rank, want=reader.want, marks=marks, closed=reader.closed)
