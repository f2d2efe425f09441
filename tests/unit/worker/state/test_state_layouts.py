"""A state that was saved is restored to the last bit, on any layout and any number of ranks, and training continues as
if it had not been interrupted."""

import pytest
from conftest import Ranks
from states import loaded, same, whole

LAYOUTS = [("plain", 1), ("ddp", 2), ("fsdp2", 3), ("hsdp", 4), ("tp", 2), ("2d", 4), ("fsdp1", 2)]


@pytest.mark.parametrize(("layout", "size"), LAYOUTS)
@pytest.mark.parametrize("source", ["memory", "storage"])
def test_continues_identically(ranks: Ranks, layout: str, size: int, source: str) -> None:
    """Weights, optimizer, scheduler, generators, values and losses are those of a run without an interruption."""
    whole_run = ranks("session", size, layout=layout, until=5)
    ranks.keeper.forget()
    first = ranks("session", size, layout=layout, until=3, env={"FTCORE_CHECKPOINTS": ""})
    if source == "storage":
        ranks.keeper.forget()
    resumed = ranks("session", size, layout=layout, until=5, seed=8, resume=(3, source))
    for rank in range(size):
        assert loaded(resumed, rank, "start")["loaded"][0] == 3
        for field in ("records", "rng"):
            assert loaded(first, rank, "end")[field] == loaded(resumed, rank, "start")[field]
        assert loaded(resumed, rank, "end")["losses"] == loaded(whole_run, rank, "end")["losses"][3:]
    assert same(whole(first, "end"), whole(resumed, "start"))
    assert same(whole(whole_run, "end"), whole(resumed, "end"))
