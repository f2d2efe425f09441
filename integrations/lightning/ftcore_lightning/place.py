"""The place in the training data: which batches of the epoch are done, and how their order was drawn.

A ``DataLoader`` draws the order of an epoch when its sampler is iterated. ``ResumableSampler`` takes the sampler's
place, remembers the generators' states of that moment, and can draw the same order again without its first batches,
which are then not even loaded. A dataset that draws random numbers in this process does so right after the sampler was
asked, so the states of that moment are remembered as well. Loaders with ``state_dict`` and ``load_state_dict`` are
resumed with these. From all others the batches that are done are read again.
"""

import itertools
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch

import ftcore.worker as ft

RngStates: TypeAlias = dict[str, Any]


class ResumableSampler:
    """Takes the place of a loader's batch sampler, or of its sampler if the loader makes no batches.

    Args:
        sampler: the sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._again: tuple[RngStates, RngStates] | None = None
        self._skipped = 0
        self.order = ft.get_rng_states()
        """The states from which the last order was drawn."""
        self.asked = self.order
        """The states when the last batch was asked for."""

    def resume(self, order: RngStates, asked: RngStates, skipped: int) -> None:
        """Draw an order again at the next iteration.

        Args:
            order: the states from which it is drawn.
            asked: the states when the first batch that is not left out is asked for.
            skipped: how many batches are left out.
        """
        self._again, self._skipped = (order, asked), skipped

    def __iter__(self) -> Iterator[Any]:
        again, self._again = self._again, None
        skipped, self._skipped = self._skipped, 0
        if again is not None:
            ft.set_rng_states(again[0])
        self.order = self.asked = ft.get_rng_states()
        for each in itertools.islice(self._sampler, skipped, None):
            if again is not None:
                ft.set_rng_states(again[1])
                again = None
            self.asked = ft.get_rng_states()
            yield each

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


class DataPlace:
    """The place in the loaders of a trainer.

    Args:
        trainer: the ``Trainer``; its loaders are set up.
    """

    def __init__(self, trainer: Any) -> None:
        self._loop = trainer.fit_loop
        self._began = ft.get_rng_states()
        self._states: list[Any] = []

    def begin(self, states: list[Any]) -> None:
        """Begin the iteration of the first epoch again, from samplers that can be resumed.

        Args:
            states: of the loaders that have some, from a checkpoint of Lightning; empty: none was loaded.
        """
        combined = self._loop._combined_loader
        self.take_samplers()
        self._states = states
        combined.reset()  # ends worker processes of the iteration that Lightning has begun
        combined._load_state_dicts(states)  # Lightning has set them, too; that iteration is over
        iter(self._loop._data_fetcher)

    def take_samplers(self) -> None:
        """Take the place of all samplers, and remember where an order may be drawn; before an epoch."""
        self._began, self._states = ft.get_rng_states(), []
        for loader in self._loop._combined_loader.flattened:
            name = _index_sampler(loader)
            if name and not isinstance(getattr(loader, name), ResumableSampler):
                object.__setattr__(loader, name, ResumableSampler(getattr(loader, name)))  # the loader refuses others

    def batch_ended(self) -> None:
        """Remember the states of loaders that have some; before the next batch is read."""
        self._states = self._loop._combined_loader._state_dicts()

    def state(self, batches: int) -> dict[str, Any]:
        """Return the place as Python values.

        Args:
            batches: batches of the epoch that are done.
        """
        orders = [[sampler.order, sampler.asked] for sampler in self._samplers()]
        return {"batches": batches, "orders": orders, "began": self._began, "loaders": self._states}

    def resume(self, place: dict[str, Any], epoch: int) -> None:
        """Go to a place.

        Args:
            place: from ``state``.
            epoch: the number of the epoch, for samplers that draw by it.
        """
        self.take_samplers()
        combined, fetcher, batches = self._loop._combined_loader, self._loop._data_fetcher, place["batches"]
        combined.reset()
        loaders = list(combined.flattened)
        for loader in loaders:
            _set_epoch(loader, epoch)
        must_read = not all(_index_sampler(loader) or _has_state(loader) for loader in loaders)
        ft.set_rng_states(place["began"])
        if not must_read:
            sampled = [loader for loader in loaders if _index_sampler(loader)]
            for loader, sampler, (order, asked) in zip(sampled, self._samplers(), place["orders"], strict=True):
                sampler.resume(order, asked, _in_cycle(batches, len(loader)))
            combined._load_state_dicts(place["loaders"])
        iter(fetcher)
        if must_read:
            for _ in range(batches):
                next(fetcher)
            fetcher.fetched -= batches  # Lightning adds them

    def _samplers(self) -> list[ResumableSampler]:
        found = [
            getattr(loader, name)
            for loader in self._loop._combined_loader.flattened
            if (name := _index_sampler(loader))
        ]
        return [sampler for sampler in found if isinstance(sampler, ResumableSampler)]


def _index_sampler(loader: Any) -> str:
    """The attribute of a loader with the sampler of its batches; empty: it has none, or resumes by itself."""
    if not isinstance(loader, torch.utils.data.DataLoader) or _has_state(loader):
        return ""
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return ""
    return "batch_sampler" if loader.batch_sampler is not None else "sampler"


def _has_state(loader: Any) -> bool:
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def _set_epoch(loader: Any, epoch: int) -> None:
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(loader, name, None)
        for each in (sampler, getattr(sampler, "sampler", None)):
            if each is not None and callable(getattr(each, "set_epoch", None)):
                each.set_epoch(epoch)


def _in_cycle(batches: int, length: int) -> int:
    """Batches of the last iteration of a loader that is iterated again when it ends."""
    return batches if batches <= length or not length else batches - length * ((batches - 1) // length)
