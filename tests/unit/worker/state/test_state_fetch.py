"""Which rank sends which shards to the ranks that lack them."""

from ftcore.checkpoint.layout import Piece, ShardIndex
from ftcore.worker.state.fetch import ShardFetch, ShardOffer, overlapping, plan

NONE = ShardOffer()


def test_a_rank_receives_a_shard_from_a_node_that_has_it() -> None:
    """All ranks of that node could send it; they take turns."""
    offers = [ShardOffer(6, (0, 1, 2, 3)), ShardOffer(6, (0, 1, 2, 3)), NONE, NONE, ShardOffer(6, (4, 5)), NONE]
    assert plan(offers, [[], [], [2], [3, 5], [], []]) == [
        ShardFetch(2, 2, 0),
        ShardFetch(3, 3, 1),
        ShardFetch(3, 5, 4),
    ]


def test_what_no_node_has_is_not_sent() -> None:
    """Then another state is tried."""
    assert plan([ShardOffer(2, (0,)), NONE], [[], [1]]) == []


def index(rank: int, pieces: list[Piece]) -> ShardIndex:
    """The index of a shard of three."""
    about = {"rank": rank, "ranks": 3, "group": rank, "groups": 3}
    return ShardIndex(job="job", log="log", step=5, round=1, pieces=tuple(pieces), **about)


def rows(begin: int, end: int) -> Piece:
    """Rows of a tensor with 12 of them."""
    return Piece("w", "float32", (12, 4), (begin, 0), (end - begin, 4))


def test_another_number_of_ranks_needs_the_shards_that_overlap() -> None:
    """Those that it has, and equal ones of other ranks, are not sent again."""
    found = {rank: index(rank, [rows(4 * rank, 4 * rank + 4)]) for rank in range(3)}
    assert overlapping([rows(0, 6)], "w", found, ()) == [0, 1]
    assert overlapping([rows(6, 12)], "w", found, (2,)) == [1]
    assert overlapping([rows(8, 12)], "w", found, (2,)) == []
    twice = found | {3: index(3, [rows(0, 4)])}
    assert overlapping([rows(0, 6)], "w", twice, ()) == [0, 1]
    assert overlapping([rows(0, 6)], "w", twice, (3,)) == [1]
    assert overlapping([], "w", found, ()) == [0], "an empty part has a shape"
