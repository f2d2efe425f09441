"""Which rank sends whose shard to the ranks that lack theirs."""

from ftcore.worker.state.fetch import ShardFetch, ShardOffer, plan

NONE = ShardOffer()


def test_a_rank_receives_its_own_shard_from_a_node_that_has_it() -> None:
    """All ranks of that node could send it; they take turns."""
    offers = [ShardOffer(6, (0, 1, 2, 3)), ShardOffer(6, (0, 1, 2, 3)), NONE, NONE, ShardOffer(6, (4, 5)), NONE]
    assert plan(offers, [3, 2]) == [ShardFetch(2, 0), ShardFetch(3, 1)]


def test_what_nobody_has_is_not_sent() -> None:
    """Then another state is tried."""
    assert plan([ShardOffer(2, (0,)), NONE], [1]) == []


def test_shards_of_another_number_of_ranks_are_not_sent() -> None:
    """They are not what a rank of this world needs."""
    assert plan([ShardOffer(3, (0, 1)), NONE], [1]) == []
