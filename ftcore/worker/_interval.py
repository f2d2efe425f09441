"""How often the state goes to storage: as the script says, or as the master chooses."""

import os
from typing import Literal

from ftcore.shm.boundary import PACED, BoundaryWords
from ftcore.worker import _environment


def is_due(number: int, every: int) -> bool:
    """Whether a step is one of every so many; 0: none is."""
    return every > 0 and number % every == 0


class PersistInterval:
    """The interval of saves to storage."""

    def __init__(self) -> None:
        self._every = 0
        self._words: BoundaryWords | None = None

    def set(self, every: int | Literal["auto"], words: BoundaryWords | None) -> None:
        """Set the number of steps.

        Args:
            every: the number; 0: none is saved; ``auto``: the master chooses it, if there is a storage.
            words: the page on which the master's choice is found.
        """
        self._every = 0 if every == "auto" else every
        if every == "auto" and words is not None and os.environ.get(_environment.CHECKPOINTS_ENV):
            words.can(PACED)
            self._follow(words)

    def new_round(self, words: BoundaryWords | None) -> None:
        """Use the page of the next round."""
        if self._words is not None and words is not None:
            self._follow(words)

    def _follow(self, words: BoundaryWords) -> None:
        self._every, self._words = int(os.environ.get(_environment.PERSIST_EVERY_ENV, "0")), words

    def is_due(self, number: int) -> bool:
        """Whether a step goes to storage."""
        return is_due(number, self._every) if self._words is None else self._words.must_persist(number, self._every)
