"""The limits of sections, learned from how long they took before.

The limit of a section is ``FACTOR`` times its longest time, but at least ``floor_s``, once it ended ``SEEN_MIN`` times;
before that it has none. Times of earlier processes count: a restarted job has the same sections.
"""

SEEN_MIN = 3
FACTOR = 4.0


class SectionLimits:
    """Learns how long the sections of one rank take.

    Args:
        floor_s: least limit, in seconds.
    """

    __slots__ = ("_before", "_floor_s", "_now")

    def __init__(self, floor_s: float) -> None:
        self._floor_s = floor_s
        self._before: dict[str, tuple[int, float]] = {}
        self._now: dict[str, tuple[int, float]] = {}

    def begin(self) -> None:
        """Begin a new process, which counts its sections from zero."""
        for name, (count, longest_s) in self._now.items():
            known, longest_before_s = self._before.get(name, (0, 0.0))
            self._before[name] = (known + count, max(longest_before_s, longest_s))
        self._now = {}

    def observe(self, name: str, count: int, longest_s: float) -> None:
        """Take in how often a section has ended in this process, and the longest time in seconds that it took."""
        self._now[name] = (count, longest_s)

    def took(self, name: str, seconds: float) -> None:
        """Take in a section that happens once per process, such as the time before its first step."""
        self._now[name] = (1, seconds)

    def interrupted(self, name: str, seconds: float) -> None:
        """Take in that a section was ended from outside after this time: next time it gets more."""
        count, longest_s = self._now.get(name, (0, 0.0))
        self._now[name] = (count, max(longest_s, seconds))

    def limit_s(self, name: str) -> float | None:
        """Return the limit in seconds; None: it is not known yet."""
        count, longest_s = self._now.get(name, (0, 0.0))
        before, longest_before_s = self._before.get(name, (0, 0.0))
        if count + before < SEEN_MIN:
            return None
        return max(self._floor_s, FACTOR * max(longest_s, longest_before_s))
