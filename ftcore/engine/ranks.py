"""Map ranks to nodes. Pure."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from ftcore.states.model import JobState


class Ranks(Mapping[int, str]):
    """The node of each rank, computed on access: a world may have a hundred thousand ranks."""

    def __init__(self, state: JobState) -> None:
        self._members = state.rounds.world.members if state.rounds.world is not None else ()
        self._size = state.rounds.world.size if state.rounds.world is not None else 0

    def __getitem__(self, rank: int) -> str:
        if not 0 <= rank < self._size:
            raise KeyError(rank)
        return self._members[bisect_right(self._members, rank, key=lambda member: member.base_rank) - 1].node

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._size))

    def __len__(self) -> int:
        return self._size
