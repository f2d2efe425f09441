"""Loads the micro-batches of a rank, from any position, in a world of any size.

The position counts what the training has taken, not what workers of the loader have read ahead. So a state that was
saved after a step continues with the next one. Starting to read draws no random number of the process, and those that
a sample draws in a process of the loader follow from its place: a restarted training has the random numbers of an
undisturbed one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from ftcore.batch import RankBatch
from ftcore.data.order import SampleOrder
from ftcore.data.seeded import PlacedSample, SeededDataset
from ftcore.data.stream import SampleStream


class ElasticLoader:
    """Yields, for each step, the list of this rank's micro-batches, without end; epochs follow each other.

    A step that an epoch does not fill takes its other samples from the next epoch: none is left out, none is padded.
    Register it as ``data`` of the job, and take the lists from ``step.batch``.

    Args:
        dataset: a data set with a length, which returns the sample of a number; see ``torch.utils.data.Dataset``.
        batch: this rank's part of the global batch, of ``TrainingJob.global_batch``.
        seed: of the order of the samples; the same on all ranks.
        shuffle: False: the samples in their own order in each epoch.
        options: of ``torch.utils.data.DataLoader``, such as ``num_workers``, ``collate_fn`` and ``pin_memory``.

    Raises:
        ValueError: the data set is empty, or an option is one that says which samples make a batch.
    """

    def __init__(self, dataset: Any, batch: RankBatch, *, seed: int = 0, shuffle: bool = True, **options: Any) -> None:
        taken = sorted({"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} & options.keys())
        if taken:
            raise ValueError(f"ElasticLoader decides which samples make a batch; found {', '.join(taken)}")
        self._dataset, self._batch, self._options = SeededDataset(dataset, seed), batch, options
        self._stream = SampleStream(SampleOrder(len(dataset), seed, shuffle=shuffle))
        self._changes = 0
        self._declared = -1

    @property
    def stream(self) -> SampleStream:
        """The order, the position and the skipped ranges; to be changed by this class alone."""
        return self._stream

    @property
    def epoch(self) -> int:
        """Number of the epoch of the next sample, from 0."""
        return self._stream.ranges(1)[0][0] // self._stream.order.size

    def steps(self, epochs: int) -> int:
        """Return how many steps train on so many epochs, without skipped samples; the last one may go beyond."""
        return -(-epochs * self._stream.order.size // self._batch.size)

    def set_batch(self, batch: RankBatch) -> None:
        """Take another part of the global batch from the next step on: of a round with another number of ranks.

        Args:
            batch: this rank's part, of ``TrainingJob.global_batch``.
        """
        self._changes += batch != self._batch
        self._batch = batch

    def skip(self, first: int, after: int) -> None:
        """Leave out places of the order from now on; see ``SampleStream.skip``. Call it on all ranks."""
        self._stream.skip(first, after)
        self._changes += 1

    def skip_batches(self, count: int) -> None:
        """Leave out the samples of the next steps; ``TrainingJob.steps`` calls it after a rollback."""
        for first, after in self._stream.ranges(count * self._batch.size):
            self._stream.skip(first, after)
        self._changes += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last step that was taken, and the skipped ranges."""
        return self._stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position.

        Raises:
            ValueError: see ``SampleStream.load_state_dict``.
        """
        self._stream.load_state_dict(state)
        self._changes += 1

    def take_declaration(self) -> dict[str, Any] | None:
        """Return where the samples continue, for the job's log.

        Returns:
            ``state_dict``, and ``batch``: how many samples a step takes; None: nothing was set or skipped since the
            last call.
        """
        if self._declared == self._changes:
            return None
        self._declared = self._changes
        return {**self.state_dict(), "batch": self._batch.size}

    def __iter__(self) -> Iterator[list[Any]]:
        while True:
            changes, count = self._changes, len(self._batch.micro_batches)
            parts = iter(DataLoader(self._dataset, batch_sampler=self._batches(), **self._seeded()))
            while self._changes == changes:
                step = [next(parts) for _ in range(count)]
                self._stream.position = self._stream.ranges(self._batch.size)[-1][1]
                yield step

    def _seeded(self) -> dict[str, Any]:
        """The options, with a source for the seeds of the loader's processes: it follows from the position."""
        stream = self._stream
        source = torch.Generator().manual_seed((stream.order.seed * 1_000_003 + stream.position) % (1 << 63))
        return {"generator": source, **self._options}

    def _batches(self) -> Iterator[list[PlacedSample]]:
        """The samples of each micro-batch of this rank, with their places; runs ahead of the training."""
        position = self._stream.position
        while True:
            ranges = self._stream.ranges(self._batch.size, position)
            position = ranges[-1][1]
            samples = self._stream.samples(ranges)
            places = [place for first, after in ranges for place in range(first, after)]
            for each in self._batch.micro_batches:
                here = slice(each.start, each.stop)
                yield list(zip(places[here], samples[here].tolist(), strict=True))
