"""The samples of all steps as one stream of places in a ``SampleOrder``, some of which are skipped.

House rules: everything follows from the position and the skipped ranges; ranks and worlds do not occur.
"""

from collections.abc import Iterable
from typing import Any

import torch

from ftcore.data.order import SampleOrder
from ftcore.sample_ranges import merged, taken


class SampleStream:
    """The places that are trained on, in order, and the position in them.

    Args:
        order: the order of the samples.

    Attributes:
        position: the place of the next sample that is trained on, or before it if places there are skipped.
        skipped: ranges of places that are not trained on, in order, without overlap: first place, place after the last.
    """

    def __init__(self, order: SampleOrder) -> None:
        self.order = order
        self.position = 0
        self.skipped: list[tuple[int, int]] = []

    def skip(self, first: int, after: int) -> None:
        """Leave out places from now on.

        Args:
            first: the first of them.
            after: the place after the last of them.

        Raises:
            ValueError: it is no range.
        """
        if not 0 <= first <= after:
            raise ValueError(f"expected 0 <= first <= after; found {first} and {after}")
        if first < after:
            self.skipped = merged([*self.skipped, (first, after)])

    def ranges(self, count: int, position: int | None = None) -> list[tuple[int, int]]:
        """Return the places of the next samples, as ranges.

        Args:
            count: how many samples.
            position: where to begin; None: at ``position``.
        """
        return taken(self.position if position is None else position, count, self.skipped)

    def samples(self, ranges: Iterable[tuple[int, int]]) -> Any:
        """Return the samples at ranges of places, as a tensor of 64-bit integers."""
        parts = [torch.arange(first, after, dtype=torch.int64) for first, after in ranges]
        return self.order.at(torch.cat(parts)) if parts else torch.empty(0, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the skipped ranges, and what defines the order."""
        order = self.order
        return {
            "position": self.position,
            "skipped": [list(each) for each in self.skipped],
            "size": order.size,
            "seed": order.seed,
            "shuffle": order.shuffle,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position. Ranges that were skipped there or are skipped here are skipped.

        Raises:
            ValueError: the state is that of another order: of a data set of another size, or with another seed.
        """
        here = self.state_dict()
        for name in ("size", "seed", "shuffle"):
            if state[name] != here[name]:
                raise ValueError(
                    f"the saved position is in another order of samples: {name} {state[name]}, now {here[name]}; the "
                    "places of its samples are others: use the same data set and seed, or begin a new training"
                )
        self.position = int(state["position"])
        self.skipped = merged([*self.skipped, *((int(first), int(after)) for first, after in state["skipped"])])
