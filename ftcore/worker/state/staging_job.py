"""One staging: what is staged, how far it is, and what came of it."""

import threading
import time
from typing import Any, Final, NamedTuple

from ftcore.checkpoint.layout import Piece
from ftcore.worker.state import replicas
from ftcore.worker.state.boundaries import PassedBoundary
from ftcore.worker.state.collect import CollectedState
from ftcore.worker.state.replicas import RankLink

POLL_S: Final = (0.0002, 0.005)
"""Least and longest pause, in seconds, between two looks at what a device has reached."""


class Preparation(NamedTuple):
    """A request for staging memory, before the first save: the registered state, and this rank."""

    collected: CollectedState
    here: RankLink


class StagingJob:
    """One staging.

    Args:
        boundary: the step boundary whose state is staged.
        persist: whether the shard goes to storage.
        ordered: other ranks may have died: wait for none.
        held: the training thread has gone on; the device has not.
        has_tensors: whether this rank stages tensors; None: as its replica group says.
    """

    def __init__(
        self,
        boundary: PassedBoundary,
        persist: bool,
        ordered: bool = False,
        held: bool = False,
        has_tensors: bool | None = None,
    ) -> None:
        self.boundary, self.moment = boundary, boundary.moment
        self.has_tensors = has_tensors
        self.damaged = False
        """The memory of this rank is damaged: only what was copied at the boundary is left of it."""
        self.persist, self.ordered, self.held = persist, ordered, held
        self.versions = self.moment.collected.versions_of()
        self.here = replicas.link()
        self.early_copied = threading.Event()
        self.copied = threading.Event()
        self.done = threading.Event()
        self.events: list[tuple[int, Any]] = []
        self.error = "it was not staged"
        self.slot = -1

    def rescued(self, stages: bool) -> list[Piece]:
        """The pieces of the tensors that a damaged rank still has, if it is one that stages tensors."""
        if not (self.damaged and stages and self.moment.early is not None):
            return []
        return [entry.piece for entry in self.moment.collected.early]

    def await_device(self, hurry: threading.Event) -> None:
        """Wait until the device has reached the boundary.

        Args:
            hurry: set when other ranks have died: the device may never reach it.

        Raises:
            RuntimeError: the device has not reached it, and ``hurry`` is set.
        """
        began = time.monotonic()
        while not self.boundary.is_reached():
            pause_s = min(max(POLL_S[0], (time.monotonic() - began) / 20), POLL_S[1])
            if hurry.wait(pause_s) and not self.boundary.is_reached():
                raise RuntimeError("the device has not reached its end")
