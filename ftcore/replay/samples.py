"""The ledger of the samples: which a job trained on, each once, and which were left out by what; from its event log.

``data.positioned`` says where each round continues in the order of the samples. Between two of them the samples follow
from the number of steps. So a position that is not where the steps before it have led means samples that were lost or
used twice, and the ledger names them. Steps that are computed again, after a fault or a rollback, count once: those of
the living lineage. Data queues have ledgers of their own, see ``queues.py``.
"""

from collections.abc import Sequence
from typing import Any

import attrs

from ftcore.events.checkpoint import BatchesSkipped, DataPositioned
from ftcore.events.envelope import Event
from ftcore.events.job import DataSkipped, JobSubmitted
from ftcore.replay.queues import QueueLedgers
from ftcore.replay.reading import Folder
from ftcore.sample_ranges import SampleRange, merged, taken, without
from ftcore.states.model import JobState


@attrs.frozen(kw_only=True)
class SampleSpan:
    """Steps that trained on consecutive places.

    Args:
        seq: the event that says where they begin.
        round: their round.
        step: the completed step before the first of them.
        end: the last of them.
        position: place at which they begin.
        batch: samples of each.
        skipped: ranges of places that they left out.
    """

    seq: int
    round: int
    step: int
    end: int
    position: int
    batch: int
    skipped: tuple[SampleRange, ...]

    def places(self) -> list[SampleRange]:
        """The places that they trained on."""
        return taken(self.position, (self.end - self.step) * self.batch, self.skipped)

    def after(self, step: int) -> int:
        """The place after the last one of a step."""
        ranges = taken(self.position, (step - self.step) * self.batch, self.skipped)
        return ranges[-1][1] if ranges else self.position


@attrs.frozen(kw_only=True)
class LeftOut:
    """Places that no step trains on.

    Args:
        first, after: the first place, and the place after the last one.
        seq: the event that records it first.
        reason: why, in words.
    """

    first: int
    after: int
    seq: int
    reason: str


@attrs.frozen(kw_only=True)
class Discrepancy:
    """A position that does not follow from the steps before it.

    Args:
        seq: the event with the position.
        step: the completed step before it.
        first, after: the places in question.
        kind: ``lost``: no step trained on them; ``repeated``: steps before had trained on them.
    """

    seq: int
    step: int
    first: int
    after: int
    kind: str


@attrs.frozen(kw_only=True)
class EpochUse:
    """The samples of an epoch.

    Args:
        epoch: its number, from 1.
        used: how many were trained on.
        left_out: how many were left out.
        to_come: how many are still to come; of an epoch that is over: 0.
    """

    epoch: int
    used: int
    left_out: int
    to_come: int


class SampleLedger:
    """A reader that accounts for the samples; see the module.

    Attributes:
        left_out: what was left out, in the order of the log.
        discrepancies: positions that do not follow from what was known before them.
    """

    def __init__(self) -> None:
        self._folder = Folder()
        self._spans: list[SampleSpan] = []
        self._order: DataPositioned | None = None
        self._reason: tuple[int, str] | None = None
        self._queues = QueueLedgers()
        self.left_out: list[LeftOut] = []
        self.discrepancies: list[Discrepancy] = []

    @property
    def state(self) -> JobState:
        """The folded state after the last event, not to be changed."""
        return self._folder.state

    @property
    def order(self) -> DataPositioned | None:
        """The newest position with the order of the samples; None: the job has reported none."""
        return self._order

    @property
    def queues(self) -> dict[str, Any]:
        """What became of the job's data queues, by name, as plain JSON values."""
        return self._queues.to_json(self.state)

    @property
    def is_exact(self) -> bool:
        """Whether each sample that was not left out was used once."""
        return not self.discrepancies and not self._queues.discrepancies(self.state)

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        self._folder.feed(event)
        self._queues.feed(event, self.state)
        data = event.data
        if type(data) is JobSubmitted:
            self._spans, self._order, self.left_out, self.discrepancies = [], None, [], []
        elif type(data) is DataSkipped:
            self._reason = event.seq, data.reason
        elif type(data) is BatchesSkipped and self._reason is None:
            self._reason = event.seq, f"{data.batches} batches after step {data.step}"
        elif type(data) is DataPositioned:
            self._positioned(event, data)
        self._extend()

    def _extend(self) -> None:
        """The newest span reaches to the newest completed step, if it was completed in its round."""
        training = self.state.training
        if not self._spans or training.step is None or not training.step_absolute:
            return
        last = self._spans[-1]
        if training.step_round >= last.round and training.step > last.end:
            self._spans[-1] = attrs.evolve(last, end=training.step)

    def _positioned(self, event: Event, data: DataPositioned) -> None:
        known = self._order
        if known is not None and (known.size, known.seed, known.shuffle) != (data.size, data.seed, data.shuffle):
            self._spans, self.left_out = [], []  # another data set or order: places mean other samples
        self._order = data
        self._spans = [each for each in self._spans if each.step <= data.step]
        if self._spans:  # later steps are computed again; steps that the log has not seen were completed in this span
            self._spans[-1] = attrs.evolve(self._spans[-1], end=data.step)
        self._compare(event, data)
        known_out = merged((each.first, each.after) for each in self.left_out)
        seq, reason = self._reason or (event.seq, "by the script")
        for first, after in without(data.skipped, known_out):
            self.left_out.append(LeftOut(first=first, after=after, seq=seq, reason=reason))
        self._reason = None
        self._spans = [each for each in self._spans if each.end > each.step]
        self._spans.append(
            SampleSpan(
                seq=event.seq,
                round=data.round,
                step=data.step,
                end=data.step,
                position=data.position,
                batch=data.batch,
                skipped=data.skipped,
            )
        )

    def _compare(self, event: Event, data: DataPositioned) -> None:
        """Look whether a position is where the steps before it have led."""
        if not self._spans and data.step == 0:
            expected = 0
        elif self._spans:
            expected = self._spans[-1].after(data.step)
        else:
            return  # the job began before this log, or with a checkpoint of its own
        low, high = sorted((expected, data.position))
        for first, after in without([(low, high)], merged(data.skipped)):
            kind = "lost" if data.position > expected else "repeated"
            self.discrepancies.append(Discrepancy(seq=event.seq, step=data.step, first=first, after=after, kind=kind))

    def used(self) -> list[SampleRange]:
        """The places that the living lineage trained on."""
        return merged(place for span in self._spans for place in span.places())

    def epochs(self) -> list[EpochUse]:
        """What became of the samples of each epoch that was begun."""
        used = self.used()
        if self._order is None or not used:
            return []
        size = self._order.size
        out = without(merged((each.first, each.after) for each in self.left_out), used)
        reached = used[-1][1]
        found = []
        for number in range(used[0][0] // size, (reached - 1) // size + 1):
            begin, end = number * size, (number + 1) * size
            trained, left = _within(used, begin, end), _within(out, begin, min(end, reached))
            to_come = max(0, end - reached) if end > reached else 0
            found.append(EpochUse(epoch=number + 1, used=trained, left_out=left, to_come=to_come))
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        order = self._order
        return {
            "samples": None if order is None else order.size,
            "seed": None if order is None else order.seed,
            "epochs": [attrs.asdict(each) for each in self.epochs()],
            "ranges_left_out": [attrs.asdict(each) for each in self.left_out],
            "discrepancies": [attrs.asdict(each) for each in self.discrepancies],
            "queues": self.queues,
        }


def _within(ranges: Sequence[SampleRange], begin: int, end: int) -> int:
    return sum(max(0, min(after, end) - max(first, begin)) for first, after in ranges)
