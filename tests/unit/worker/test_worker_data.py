"""The registered data of a job: what reading it and its state do to the random numbers of the training."""

from collections.abc import Iterator

import torch

from ftcore.worker._data import RegisteredData


class Lazy:
    """As torchdata's loader: it begins to read, and draws a seed, for its first state too."""

    def __init__(self) -> None:
        self.given, self.begun = 0, False

    def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            torch.randint(9, ())

    def __iter__(self) -> Iterator[int]:
        self._begin()
        while True:
            self.given += 1
            yield self.given

    def state_dict(self) -> dict[str, int]:
        self._begin()
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given, self.begun = state["given"], False


def registered() -> RegisteredData:
    found = RegisteredData()
    found.source = Lazy()
    return found


def drawn() -> torch.Tensor:
    return torch.rand(3)


def test_a_state_that_is_read_before_the_data_changes_no_random_number() -> None:
    """Neither does beginning to read again, after steps were completed."""
    torch.manual_seed(0)
    data = registered()
    assert data.is_stateful and data.state_dict() == {"given": 0}
    batches = [data.next_batch(0), data.next_batch(1)]
    expected, saved = torch.get_rng_state(), data.state_dict()
    undisturbed = (data.next_batch(2), drawn())

    again = registered()
    torch.set_rng_state(expected)
    again.load_state_dict(saved)
    assert again.state_dict() == saved
    batch, numbers = again.next_batch(2), drawn()
    assert batches == [1, 2]
    assert batch == undisturbed[0] == 3
    assert torch.equal(numbers, undisturbed[1])


def test_data_without_a_state_is_not_stateful() -> None:
    data = RegisteredData()
    data.source = [1, 2]
    assert not data.is_stateful
    assert [data.next_batch(step) for step in range(3)] == [1, 2, 1]
