"""A data set whose samples draw random numbers of their own in the processes of a loader."""

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import get_worker_info

PlacedSample = tuple[int, int]
"""A place of the order, and the number of the sample there."""


class SeededDataset:
    """Seeds the generators of a loader's process by the place of each sample before it is made.

    So a random augmentation does not depend on which process makes the sample, nor on where the loader began: it is the
    same after a restart, with other ranks and with other processes, and another one in each epoch. The generators are
    those of torch, ``random`` and ``numpy.random``. Without processes nothing is seeded: the training's own generators
    are saved with its state.

    Args:
        dataset: the data set; its other attributes are found here, too (``get_worker_info().dataset``).
        seed: of the order of the samples.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        if callable(getattr(dataset, "__getitems__", None)):
            self.__getitems__ = self._whole_batch

    def __getitem__(self, placed: PlacedSample) -> Any:
        place, number = placed
        self._begin(place)
        return self._dataset[number]

    def _whole_batch(self, batch: Sequence[PlacedSample]) -> Any:
        """As ``__getitems__`` of the data set: the random numbers of a batch follow from its first place."""
        self._begin(batch[0][0])
        return self._dataset.__getitems__([number for _, number in batch])

    def _begin(self, place: int) -> None:
        if get_worker_info() is None:
            return
        seed = (self._seed * 1_000_003 + place) % (1 << 63)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % (1 << 32))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not while it is unpickled, when nothing is set yet
            raise AttributeError(name)
        return getattr(self._dataset, name)
