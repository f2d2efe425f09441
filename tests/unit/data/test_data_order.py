"""The order of the samples is a permutation of each epoch, and any place of it is found by itself."""

import pytest
import torch

from ftcore.data import SampleOrder
from ftcore.data.order import SIZE_MAX


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097])
def test_each_epoch_is_a_permutation(size: int) -> None:
    order = SampleOrder(size, seed=3)
    for epoch in (0, 1, 12):
        found = order.at(torch.arange(epoch * size, (epoch + 1) * size))
        assert found.sort().values.tolist() == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    """So do most places of two of them: as many are equal as chance makes, one on average."""
    first = SampleOrder(5000, seed=1).at(torch.arange(5000))
    for other in (
        SampleOrder(5000, seed=1).at(torch.arange(5000, 10_000)),
        SampleOrder(5000, seed=2).at(torch.arange(5000)),
    ):
        assert int((first == other).sum()) < 10


def test_neighbours_are_far_apart() -> None:
    """The mean distance of neighbours in the order is a third of the size, as in a random one."""
    size = 100_000
    found = SampleOrder(size, seed=9).at(torch.arange(size)).double()
    assert 0.32 < float((found[1:] - found[:-1]).abs().mean()) / size < 0.345
    assert abs(float(torch.corrcoef(torch.stack([found, torch.arange(size).double()]))[0, 1])) < 0.02


def test_places_of_several_epochs_at_once() -> None:
    order = SampleOrder(10, seed=4)
    places = torch.tensor([[9, 10], [25, 3]])
    assert order.at(places).tolist() == [[int(order.at(torch.tensor([p]))) for p in row] for row in places.tolist()]


def test_without_shuffling() -> None:
    assert SampleOrder(4, shuffle=False).at(torch.arange(9)).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_thousand_million_samples() -> None:
    """Nothing of that size is made; far places are samples, all different."""
    order = SampleOrder(10**9, seed=1)
    found = order.at(torch.arange(7 * 10**9 + 123, 7 * 10**9 + 4219))
    assert len(set(found.tolist())) == 4096 and 0 <= int(found.min()) <= int(found.max()) < 10**9


def test_the_order_stays_what_it_was() -> None:
    """A training that resumes with a newer ftcore goes on in the same order."""
    assert SampleOrder(1000, seed=7).at(torch.tensor([0, 1, 2, 999, 1000, 12_345])).tolist() == EXPECTED


EXPECTED = [941, 617, 607, 249, 370, 549]


@pytest.mark.parametrize("size", [0, -1, SIZE_MAX + 1])
def test_a_size_that_is_none(size: int) -> None:
    with pytest.raises(ValueError, match="1 to"):
        SampleOrder(size)
