"""The newest view, for any number of readers: the one place where the event loop and the threads of requests meet.

House rule: only the newest view is kept. A reader that is slow misses views, and delays nobody.
"""

import threading

import attrs


@attrs.frozen
class Published:
    """A view.

    Args:
        number: counts the views of this process.
        seq: the last event that it includes.
        body: its JSON.
    """

    number: int
    seq: int
    body: bytes


class Board:
    """Holds the newest view."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._newest = Published(0, 0, b"")
        self._waiting = 0
        self._closed = False

    def publish(self, seq: int, body: bytes) -> None:
        """Replace the view."""
        with self._condition:
            self._newest = Published(self._newest.number + 1, seq, body)
            self._condition.notify_all()

    def newer(self, number: int, wait_s: float) -> Published | None:
        """Wait for a view with a larger number; None: there was none in time, or no view follows.

        Args:
            number: that of the last view that the reader has. If it has none: ``self.number``, so it gets one that is
                made now.
            wait_s: seconds to wait, at most.
        """
        with self._condition:
            self._waiting += 1
            try:
                self._condition.wait_for(lambda: self._closed or self._newest.number > number, wait_s)
            finally:
                self._waiting -= 1
            return self._newest if self._newest.number > number else None

    @property
    def number(self) -> int:
        """That of the newest view; 0: there was none."""
        return self._newest.number

    @property
    def has_readers(self) -> bool:
        """Whether someone waits for a view: without a reader, none need be made."""
        return self._waiting > 0

    @property
    def closed(self) -> bool:
        """Whether no view will follow."""
        return self._closed

    def close(self) -> None:
        """Wake all readers: no view will follow."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
