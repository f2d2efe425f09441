"""The registered data of the job: its batches, and what an object of ``ftcore.data`` wants to know of the steps."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ftcore.shm.boundary import SKIPS, TOKENS
from ftcore.worker import _environment
from ftcore.worker._progress import progress
from ftcore.worker._rng import get_rng_states, set_rng_states

_Result = TypeVar("_Result")


def _undisturbed(call: Callable[[], _Result]) -> _Result:
    """Call a function, and undo what it draws from the generators of this process."""
    if "torch" not in sys.modules:
        return call()
    states = get_rng_states()
    try:
        return call()
    finally:
        set_rng_states(states)


class RegisteredData:
    """The source of ``step.batch``.

    Attributes:
        source: the registered object; None: there is none.
        tokens: tokens of one step of all ranks; 0: not known.
        positioned: reports where the samples continue; None: nothing is reported.
    """

    def __init__(self) -> None:
        self.source: Any = None
        self.tokens = 0
        self.positioned: Callable[[dict[str, Any]], None] | None = None
        self._batches: Iterator[Any] | None = None

    def next_batch(self, step: int) -> Any:
        """Return the next batch; after the last one, the first one again.

        Args:
            step: the number of the last completed step.

        Raises:
            AttributeError: nothing is registered.
            EOFError: there is no batch.
        """
        if self.source is None:
            raise AttributeError("step.batch needs register(data=...)")
        if self._batches is None:
            self._batches = self._begin_after(step)
            words = progress().boundary_words
            if self.positioned is not None and words is not None:
                words.can(SKIPS | (TOKENS if self.tokens else 0))
        declare = getattr(self.source, "take_declaration", None)
        if self.positioned is not None and callable(declare) and os.environ.get("RANK", "0") == "0":
            declaration = declare()
            if declaration is not None:
                self.positioned({"step": step, **declaration})
        try:
            return next(self._batches)
        except StopIteration:
            self._batches = iter(self.source)
            try:
                return next(self._batches)
            except StopIteration:
                raise EOFError("the registered data has no batch left for this rank") from None

    def _begin_after(self, step: int) -> Iterator[Any]:
        """Begin to read. If steps were completed before, what ``iter`` draws from the generators is undone.

        A ``DataLoader`` draws a seed there. An undisturbed training drew it before its first step.
        """
        return iter(self.source) if not step else _undisturbed(lambda: iter(self.source))

    @property
    def is_stateful(self) -> bool:
        """Whether the source has a state of its own, and this object can be saved in its place."""
        return all(callable(getattr(self.source, name, None)) for name in ("state_dict", "load_state_dict"))

    def state_dict(self) -> Any:
        """The state of the source.

        A loader of torchdata that is not read yet begins to read for it. What it draws from the generators is undone.
        """
        return self.source.state_dict() if self._batches is not None else _undisturbed(self.source.state_dict)

    def load_state_dict(self, state: Any) -> None:
        """Set the state of the source."""
        self.source.load_state_dict(state)

    def skips(self) -> dict[int, int]:
        """The batches that this round leaves out, by the step after which they are."""
        return _environment.skips(self.tokens) if self.source is not None else {}

    def skip(self, batches: int, step: int) -> None:
        """Leave out batches.

        Args:
            batches: how many.
            step: the number of the last completed step.
        """
        skip = getattr(self.source, "skip_batches", None)
        if callable(skip):
            skip(batches)
        else:
            for _ in range(batches):
                self.next_batch(step)

    def continue_after(self, step: int) -> None:
        """The training goes on after a step."""
        self._call("continue_after", step)

    def step_ended(self, step: int) -> None:
        """A step is complete; before its save, because what a saved step has used up must be known."""
        self._call("step_ended", step)

    def new_round(self) -> None:
        """This process has entered another round, and restores the position of its data."""
        self._batches = None
        self._call("new_round", *_environment.place())

    def _call(self, name: str, *arguments: int) -> None:
        method = getattr(self.source, name, None)
        if callable(method):
            method(*arguments)
