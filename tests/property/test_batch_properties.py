"""The global batch, for any sizes and worlds: every sample once, equal parts as far as possible, exact means."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from ftcore.batch import BatchRule, BatchTotal, batch_total, dividing_sizes, rank_batch, wrong_sizes
from ftcore.events.job import BatchSpec, JobSpec
from ftcore.events.world import Member
from ftcore.states.world import batch_of

SCALING = (BatchRule.LINEAR_LR, BatchRule.SQRT_LR)


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, int]:
    """A global batch, and a micro-batch that divides it, or 0."""
    micro = draw(st.integers(0, 12))
    return draw(st.integers(1, 40)) * (micro or 1), micro


@given(batches(), st.sampled_from(BatchRule), st.integers(1, 9), st.integers(0, 8), st.integers(1, 4))
def test_every_sample_is_computed_once(
    sizes: tuple[int, int], rule: BatchRule, nodes: int, missing: int, slots: int
) -> None:
    """Ranks take consecutive samples, none twice; their numbers differ by at most one micro-batch."""
    size, micro = sizes
    assert not wrong_sizes(size, micro)
    ranks = nodes * slots
    total = batch_total(size, micro, rule, nodes, nodes + missing, ranks)
    parts = [rank_batch(total, rank, ranks) for rank in range(ranks)]
    assert [sample for part in parts for micro_batch in part.micro_batches for sample in micro_batch] == list(
        range(total.size)
    )
    at = 0
    for part in parts:
        assert (part.offset, part.samples) == (at, sum(map(len, part.micro_batches)))
        at += part.samples
    counts = [part.samples for part in parts]
    assert max(counts) - min(counts) <= (micro or 1) and max(counts) == counts[0]
    assert all(len(one) == total.micro for part in parts for one in part.micro_batches) or not micro
    assert min(counts) >= 1 or total.size < ranks
    assert len(parts[0].micro_batches) <= 1 or micro


@given(batches(), st.integers(1, 12), st.randoms(use_true_random=False))
def test_weights_give_the_mean_over_the_global_batch(sizes: tuple[int, int], ranks: int, chance) -> None:
    """The weighted means of micro-batches, summed by rank and averaged over ranks, are the mean of all samples."""
    size, micro = sizes
    total = batch_total(size, micro, BatchRule.KEEP, 1, 1, ranks)
    losses = [Fraction(chance.randrange(-50, 50)) for _ in range(size)]
    summed = Fraction(0)
    for rank in range(ranks):
        part = rank_batch(total, rank, ranks)
        weight = Fraction(part.weight).limit_denominator(size)
        for one in part.micro_batches:
            summed += weight * sum((losses[sample] for sample in one), Fraction(0)) / len(one)
    assert summed / ranks == sum(losses, Fraction(0)) / size


@given(batches(), st.sampled_from(BatchRule), st.integers(1, 16), st.integers(1, 4))
def test_rules(sizes: tuple[int, int], rule: BatchRule, nodes: int, slots: int) -> None:
    """The largest world has the whole batch and the plain learning rate; a smaller one keeps or scales both."""
    size, micro = sizes
    for count in range(1, nodes + 1):
        total = batch_total(size, micro, rule, count, nodes, count * slots)
        if rule not in SCALING or count == nodes:
            assert (total.size, total.lr_scale) == (size, 1.0)
        else:
            assert abs(total.size - size * count / nodes) <= (micro or 1) and total.size % (micro or 1) == 0
            ratio = total.size / size
            assert total.lr_scale == (ratio if rule is BatchRule.LINEAR_LR else ratio**0.5)


@given(batches(), st.integers(1, 4), st.integers(1, 40))
def test_dividing_sizes(sizes: tuple[int, int], slots: int, most: int) -> None:
    """These numbers of nodes, and no others, give every rank the same number of micro-batches of the given size."""
    size, micro = sizes
    found = dividing_sizes(size, micro, slots, range(1, most + 1))
    for nodes in range(1, most + 1):
        units = [rank_batch(BatchTotal(size, micro, 1.0), rank, nodes * slots).samples for rank in range(nodes * slots)]
        assert (nodes in found) == (len(set(units)) == 1 and units[0] > 0)


@given(batches(), st.lists(st.integers(1, 3), min_size=1, max_size=5))
def test_nodes_of_unequal_width(sizes: tuple[int, int], widths: list[int]) -> None:
    """What ``world.formed`` records is what the ranks take."""
    members = [
        Member(node=f"n{at}", incarnation="i", ordinal=at, base_rank=sum(widths[:at]), slots=wide)
        for at, wide in enumerate(widths)
    ]
    wanted = BatchSpec(size=sizes[0], micro=sizes[1])
    found = batch_of(JobSpec(argv=("t.py",), nodes_max=len(widths), batch=wanted), members)
    assert found is not None
    total = BatchTotal(found.size, found.micro, found.lr_scale)
    taken = [rank_batch(total, rank, sum(widths)).samples for rank in range(sum(widths))]
    assert (found.least, found.most) == (min(taken), max(taken))
