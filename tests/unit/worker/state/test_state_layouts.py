"""A state that was saved is restored to the last bit, on any layout and any number of ranks, and training continues as
if it had not been interrupted."""

import pytest
from rank_processes import Ranks
from states import loaded, same, whole

LAYOUTS = [
    ("plain", 1),
    ("ddp", 2),
    pytest.param("fsdp2", 3, marks=pytest.mark.long),
    pytest.param("hsdp", 4, marks=pytest.mark.long),
    pytest.param("tp", 2, marks=pytest.mark.long),
    ("2d", 4),  # fsdp2 and tensor parallel
    ("fsdp1", 2),
]

pytestmark = pytest.mark.timeout(300)  # several processes with torch, one after the other


@pytest.mark.parametrize(("layout", "size"), LAYOUTS)
def test_continues_identically(ranks: Ranks, layout: str, size: int) -> None:
    """From memory and from storage, weights, optimizer, scheduler, generators, values and losses are those of a run
    without an interruption."""
    whole_run = ranks("session", size, layout=layout, until=5)
    ranks.keeper.forget()
    first = ranks("session", size, layout=layout, until=3, env={"FTCORE_CHECKPOINTS": ""})
    for source in ("memory", "storage"):
        resumed = ranks("session", size, layout=layout, until=5, seed=8, resume=(3, source), of=2)
        ranks.keeper.forget()
        for rank in range(size):
            assert loaded(resumed, rank, "start")["loaded"][0] == 3
            for field in ("records", "rng"):
                assert loaded(first, rank, "end")[field] == loaded(resumed, rank, "start")[field]
            assert loaded(resumed, rank, "end")["losses"] == loaded(whole_run, rank, "end")["losses"][3:]
        assert same(whole(first, "end"), whole(resumed, "start"))
        assert same(whole(whole_run, "end"), whole(resumed, "end"))


RESHARDED = [
    pytest.param(("plain", 1), ("fsdp2", 2), "adamw", marks=pytest.mark.long),
    (("ddp", 2), ("fsdp2", 3), "adam"),
    pytest.param(("fsdp2", 3), ("ddp", 4), "sgd", marks=pytest.mark.long),
    (("fsdp2", 4), ("fsdp2", 3), "adamw"),
    pytest.param(("fsdp2", 3), ("fsdp2", 4), "adam", marks=pytest.mark.long),
    pytest.param(("fsdp2", 2), ("plain", 1), "adamw", marks=pytest.mark.long),
    (("ddp", 1), ("hsdp", 4), "adamw"),
    pytest.param(("hsdp", 4), ("fsdp2", 2), "sgd", marks=pytest.mark.long),
    (("2d", 4), ("fsdp1", 3), "adamw"),
    pytest.param(("fsdp1", 3), ("2d", 4), "adam", marks=pytest.mark.long),
    pytest.param(("fsdp1", 2), ("fsdp1", 4), "adamw", marks=pytest.mark.long),
    (("tp", 2), ("ddp", 2), "adamw"),
]


@pytest.mark.parametrize(("before", "after", "optimizer"), RESHARDED)
def test_resharded(ranks: Ranks, before: tuple[str, int], after: tuple[str, int], optimizer: str) -> None:
    """State that one layout saved is restored on another, from memory and from storage, and trains on."""
    first = ranks("session", before[1], layout=before[0], optimizer=optimizer)
    saved = whole(first, "end")
    for number, source in enumerate(("memory", "storage")):
        args = {"layout": after[0], "optimizer": optimizer, "seed": 8, "until": 3 if not number else 4}
        resumed = ranks("session", after[1], resume=(3, source), of=1, **args)
        assert loaded(resumed, 0, "start")["loaded"][:2] == (3, source)
        assert same(saved, whole(resumed, "start"))
        last = after[1] - 1
        assert loaded(resumed, last, "start")["records"] == loaded(first, last % before[1], "end")["records"]
        is_own = before[1] == after[1]
        assert (loaded(resumed, last, "start")["rng"] == loaded(first, last % before[1], "end")["rng"]) == is_own
