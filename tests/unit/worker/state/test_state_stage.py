"""What is staged, when, by whom; and that an error of ours never ends a training."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from keeper_double import KeeperDouble
from rank_processes import Ranks, until
from states import equal, loaded, same, whole

from ftcore.checkpoint.manifest import read
from ftcore.checkpoint.sources import FileSource
from ftcore.checkpoint.storage import Storage
from ftcore.worker.state.collect import decoded

pytestmark = pytest.mark.timeout(300)  # several processes with torch, one after the other


def staged(keeper: KeeperDouble, step: int, local_rank: int = 0) -> dict[str, torch.Tensor]:
    """The tensors of a staged shard."""
    for each in keeper.held():
        if (each["step"], each["local_rank"]) == (step, local_rank):
            source = keeper.source(local_rank, each["slot"])
            return {
                piece.name: torch.frombuffer(bytearray(source.read(piece)), dtype=getattr(torch, piece.dtype)).view(
                    piece.shape
                )
                for piece in source.index.pieces
                if piece.bytes
            }
    raise AssertionError(f"step {step} is not held: {keeper.held()}")


@pytest.mark.parametrize("source", ["memory", "storage"])
def test_every_kind_of_tensor(ranks: Ranks, source: str) -> None:
    """All dtypes, 0-dim, empty, non-contiguous, conjugated tensors, arrays, nested values and generators."""
    ranks("stage_cases:odd_saved")
    if source == "storage":
        ranks.keeper.forget()
    ranks("stage_cases:odd_loaded", resume=(1, source))


def test_every_kind_of_object(ranks: Ranks) -> None:
    """Optimizers with nested state, exact types of state, tensors among hyperparameters, extra state, a scaler."""
    first = ranks("stage_cases:objects", load=False)
    second = ranks("stage_cases:objects", load=True, resume=(1, "storage"))
    one, two = (torch.load(out / "state", weights_only=False) for out in (first, second))
    assert equal(one, two)


def test_state_grows_and_shrinks(ranks: Ranks) -> None:
    """Each save has the tensors of its step; larger memory is requested."""
    ranks("stage_cases:grows")
    for step in (1, 2, 3, 4):
        ranks("stage_cases:grows", load=step, resume=(step, "storage"), of=1)


@pytest.mark.long
def test_many_small_tensors(ranks: Ranks) -> None:
    """10,000 parameters and their optimizer state."""
    first = ranks("stage_cases:many", load=False)
    assert len(ranks.keeper.asked) == 1
    second = ranks("stage_cases:many", load=True, resume=(2, "memory"))
    one, two = (torch.load(out / "state", weights_only=False) for out in (first, second))
    assert all(map(torch.equal, one[0], two[0]))
    assert len(one[1]["state"]) == 10_000
    for number, state in one[1]["state"].items():
        assert same(state, two[1]["state"][number])


def test_a_changed_tensor_makes_a_copy_invalid(ranks: Ranks) -> None:
    """It is not sealed, one line says which tensor, and later copies of this tensor are made at once."""
    out = ranks("stage_cases:changed")
    assert [each["step"] for each in ranks.keeper.held()] == [2]
    assert ranks.log(out).count("ftcore:") == 1
    assert "step 1 was not staged: model/0.weight changed" in ranks.log(out)


def test_the_optimizer_waits_for_the_copy(ranks: Ranks) -> None:
    """The shard has parameters and buffers of the step boundary, although forward and a step have changed both."""
    out = ranks("stage_cases:waits")
    found = staged(ranks.keeper, 1)
    for name, each in torch.load(out / "before").items():
        assert torch.equal(found[f"model/{name}"], each), name


def test_a_copy_of_memory_that_is_damaged_meanwhile_is_not_used(ranks: Ranks) -> None:
    """The rank stages what it had copied at the boundary before; the rest comes from another rank."""
    ranks("stage_cases:damaged")
    assert [each["step"] for each in ranks.keeper.held()] == [1]
    assert all("running" in name or "num_batches" in name for name in staged(ranks.keeper, 1))


def test_a_step_that_is_not_seen_changes_no_copy(ranks: Ranks) -> None:
    """Without a step between two boundaries, the second save returns when all is copied."""
    out = ranks("stage_cases:unseen_step")
    found = staged(ranks.keeper, 2)
    for name, each in torch.load(out / "before").items():
        assert torch.equal(found[f"model/{name}"], each), name


def test_saves_overlap(ranks: Ranks) -> None:
    """Two saves without a step between them are both complete."""
    ranks("stage_cases:overlapping")
    assert {each["step"] for each in ranks.keeper.held()} == {1, 2}


def test_without_an_optimizer_the_copy_is_made_at_once(ranks: Ranks) -> None:
    """Nothing could wait for it later."""
    ranks("stage_cases:without_optimizer")
    assert bool((staged(ranks.keeper, 1)["weights/w"] == 1).all())


def test_a_requested_save_ends_on_storage(ranks: Ranks) -> None:
    """At the boundary that the agent chose, all is staged when it is answered; on request, in memory only."""
    ranks("stage_cases:requested")
    sealed = [ranks.keeper.sealed.get(timeout=10) for _ in range(3)]
    assert sealed == [(0, 1, False), (0, 2, True), (0, 3, True)]


# -- replica groups


def test_replicas_stage_once_per_node_and_persist_once(ranks: Ranks) -> None:
    """Four ranks of DDP on two nodes: two stage tensors, one writes to storage, with the values of all."""
    nodes = {rank: {"GROUP_RANK": str(rank // 2)} for rank in range(4)}
    out = ranks("session", 4, layout="ddp", until=1, by_rank=nodes)
    held = {each["rank"]: each for each in ranks.keeper.held()}
    assert {rank: each["bytes"] > 0 for rank, each in held.items()} == {0: True, 1: False, 2: True, 3: False}
    assert {(each["group"], each["groups"], each["ranks"]) for each in held.values()} == {(0, 1, 4)}
    assert sorted(ranks.keeper.sealed.get(timeout=10) for _ in range(4)) == [(r, 1, r == 0) for r in range(4)]
    manifest = read(Storage(ranks.keeper.url), "step-000000001-r1")
    (file,) = manifest.files
    with FileSource(Storage(ranks.keeper.url), f"step-000000001-r1/{file.name}") as source:
        others = decoded(source.index.values)["others"]
    assert [decoded(others[str(rank)])["rng"] for rank in (1, 2, 3)] == [
        loaded(out, rank, "end")["rng"] for rank in (1, 2, 3)
    ]


def test_optimizers_split_by_hand(ranks: Ranks) -> None:
    """Declared slices define the groups, [0, 2] and [1, 3]; they load on another number of ranks and of parts."""
    out = ranks("stage_cases:slices", 4, load=False, parts=2)
    groups = [(out / f"{rank}.groups").read_text() for rank in range(4)]
    assert groups == ["[0, 2, True, True]", "[1, 2, True, True]", "[0, 2, False, False]", "[1, 2, False, False]"]
    ranks("stage_cases:slices", 4, load=True, parts=2, resume=(1, "memory"))
    ranks("stage_cases:slices", 3, load=True, parts=3, resume=(1, "storage"), of=1)
    ranks("stage_cases:slices", 1, load=True, parts=1, resume=(1, "storage"), of=1)


# -- orders, when other ranks have died


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_a_blocked_rank_stages_its_complete_state(ranks: Ranks, layout: str) -> None:
    """While it waits in a collective of step 4, it stages the tensors, values and generators of step 3.

    With DDP, rank 2 stages no tensors: rank 0 lives.
    """
    out = ranks.start("stage_cases:blocked", 3, layout=layout)
    until(lambda: all((out / f"{rank}.ready").exists() for rank in range(3)))
    for rank in (0, 2):
        ranks.keeper.order(7 + rank, rank)
    answers = [ranks.keeper.answers.get(timeout=60) for _ in range(2)]
    held = {(each["rank"], each["step"]): each for each in ranks.keeper.held()}
    for answer in answers:
        assert answer["step"] == 3 and answer["staged"] == 7 + answer["rank"], answer
        each = held[answer["rank"], 3]
        has_tensors = layout == "fsdp2" or answer["rank"] == 0
        assert (each["bytes"] > 0) == has_tensors
        index = ranks.keeper.source(each["local_rank"], each["slot"]).index
        expected = loaded(out, answer["rank"], "end")
        assert decoded(index.values)["rng"] == expected["rng"]
        assert decoded(index.values)["objects"] == expected["records"]
        if not has_tensors:
            continue
        found = staged(ranks.keeper, 3, answer["rank"])
        pieces = {(name, offset): data for (name, _, offset), data in expected["pieces"] if data.numel()}
        assert found.keys() == {name for name, _ in pieces}
        assert all(torch.equal(found[name], data) for (name, _), data in pieces.items())
    for rank in range(3):
        os.kill(int((out / f"{rank}.pid").read_text()), signal.SIGKILL)
    ranks.finish(out, fails=True)


def test_a_step_that_fails_leaves_the_one_before(ranks: Ranks) -> None:
    """Rank 0, which stages for all, is killed in step 4: the others fail, and rank 1 stages step 3 for the group."""
    out = ranks.start("stage_cases:blocked", 3, layout="ddp", stops=0)
    until(lambda: all((out / f"{rank}.ready").exists() for rank in range(3)))
    os.kill(int((out / "0.pid").read_text()), signal.SIGKILL)
    ranks.finish(out, fails=True)
    held = {each["rank"]: each["bytes"] for each in ranks.keeper.held() if each["step"] == 3}
    assert held.keys() == {1, 2} and held[1]
    expected = {name: data for (name, _, _), data in loaded(out, 1, "end")["pieces"] if data.numel()}
    assert same(staged(ranks.keeper, 3, 1), expected)


@pytest.mark.parametrize(
    ("where", "why"),
    [("inside", "an optimizer's step is in progress"), ("after", "has stepped since the boundary of step 1")],
)
def test_an_incomplete_step_is_not_staged(ranks: Ranks, where: str, why: str) -> None:
    """Within an optimizer's step, and between it and the boundary, the order is refused with the reason."""
    out = ranks.start("stage_cases:in_a_step", 1, where=where)
    until((out / "ready").exists)
    ranks.keeper.order(1, 0)
    assert why in ranks.keeper.answers.get(timeout=60)["error"]
    (out / "go").touch()
    ranks.finish(out)


# -- errors of ours


def test_a_keeper_that_ends_does_not_end_the_training(
    ranks: Ranks, make_keeper: Callable[..., KeeperDouble], zygote: Any, tmp_path: Path
) -> None:
    """One line says it; saves are possible again with the next keeper."""
    out = ranks.start("stage_cases:endless")
    while ranks.keeper.sealed.get(timeout=60)[1] < 3:
        pass
    ranks.keeper.close()
    ranks.keeper.path.unlink()
    until(lambda: "training goes on" in ranks.log(out))
    successor = KeeperDouble(ranks.keeper.path)
    step = successor.sealed.get(timeout=60)[1]
    assert successor.sealed.get(timeout=60)[1] > step
    (out / "stop").touch()
    ranks.finish(out)
    successor.close()
    assert 1 <= ranks.log(out).count("ftcore:") <= 2, ranks.log(out)


def test_too_little_memory_does_not_end_the_training(
    make_keeper: Callable[..., KeeperDouble], zygote: Any, tmp_path: Path
) -> None:
    """One line has the limit and what is needed."""
    ranks = Ranks(zygote, tmp_path, make_keeper(memory=10_000))
    out = ranks("session", layout="plain", until=3)
    assert len(loaded(out, 0, "end")["losses"]) == 3
    assert ranks.log(out).count("ftcore:") == 1
    assert "step 1 was not staged: the memory limit is 10000 bytes" in ranks.log(out)


# -- loading


def test_a_replaced_node_receives_from_its_replicas(
    ranks: Ranks, make_keeper: Callable[..., KeeperDouble], zygote: Any
) -> None:
    """The state in memory of one node is sent to the ranks of the other; nothing is read from storage."""
    first = ranks("session", 4, layout="hsdp", env={"FTCORE_CHECKPOINTS": ""})
    ranks.keeper.forget(2)
    empty = make_keeper()
    second = {rank: {"GROUP_RANK": "1", "FTCORE_KEEPER": str(empty.path)} for rank in (2, 3)}
    resumed = ranks(
        "session", 4, layout="hsdp", seed=8, by_rank=second, resume=(3, "memory"), env={"FTCORE_CHECKPOINTS": ""}
    )
    sources = [loaded(resumed, rank, "start")["loaded"][:2] for rank in range(4)]
    assert sources == [(3, "memory"), (3, "memory"), (3, "replica"), (3, "replica")]
    assert same(whole(first, "end"), whole(resumed, "start"))
    assert loaded(resumed, 0, "start")["rng"] == loaded(first, 0, "end")["rng"]
    assert loaded(resumed, 3, "start")["rng"] != loaded(first, 1, "end")["rng"]


def test_one_rank_of_a_group_reads_the_storage(ranks: Ranks) -> None:
    """The others receive tensors and their own values from it."""
    first = ranks("session", 3, layout="ddp")
    ranks.keeper.forget()
    resumed = ranks("session", 3, layout="ddp", seed=8, resume=(3, "storage"))
    assert [loaded(resumed, r, "start")["loaded"][1] for r in range(3)] == ["storage", "replica", "replica"]
    assert all(loaded(resumed, r, "start")["rng"] == loaded(first, r, "end")["rng"] for r in range(3))


def test_a_damaged_checkpoint_is_not_used(ranks: Ranks) -> None:
    """All ranks take the next older one together, and say so; if all are damaged, training does not start."""
    ranks("session", 2, layout="fsdp2", persist_every=1, save_every=0, durable=True)
    ranks.keeper.forget()
    second = ranks("session", 2, layout="fsdp2", until=2, env={"FTCORE_CHECKPOINTS": ""})
    ranks.keeper.forget()
    for shard in Path(ranks.keeper.url).glob("step-000000003-r1/shard-00001*"):
        raw = bytearray(shard.read_bytes())
        raw[-len(raw) // 3] ^= 4
        shard.write_bytes(raw)
    resumed = ranks("session", 2, layout="fsdp2", seed=8, resume=(3, "storage"), of=1)
    assert same(whole(resumed, "start"), whole(second, "end"))
    assert loaded(resumed, 1, "start")["loaded"][0] == 2
    assert "step 3 of round 1" in ranks.log(resumed) and "damaged" in ranks.log(resumed)
    for shard in Path(ranks.keeper.url).glob("step-*/shard-00000*"):
        shard.write_bytes(shard.read_bytes()[:-1])
    failed = ranks("session", 2, layout="fsdp2", resume=(3, "storage"), of=1, fails=True)
    assert "no saved state can be loaded" in ranks.log(failed, 1)


def test_a_rollback_loads_nothing_newer(ranks: Ranks) -> None:
    """FTCORE_RESUME_STEP is the newest step that may be used."""
    ranks("session", layout="plain", persist_every=1, durable=True)
    resumed = ranks("session", layout="plain", env={"FTCORE_RESUME_STEP": "2"})
    assert loaded(resumed, 0, "start")["loaded"][0] == 2


def test_what_a_rollback_left_behind_is_never_loaded(ranks: Ranks) -> None:
    """Neither instead of a damaged checkpoint, nor from memory, nor if the master knows of no saved state."""
    ranks("session", layout="plain", persist_every=1, durable=True)
    ranks.keeper.forget()
    back = {"FTCORE_ROLLBACKS": '[{"round": 2, "step": 1}]'}
    url, ranks.keeper.url = ranks.keeper.url, ""
    ranks("session", layout="plain", until=2)
    ranks.keeper.url = url
    instead = ranks("session", layout="plain", env=back, resume=(9, "storage"), until=2)
    assert loaded(instead, 0, "start")["loaded"][:2] == (2, "memory")
    ranks.keeper.forget()
    for resume in ((9, "storage"), None):
        instead = ranks("session", layout="plain", env=back, resume=resume, until=1)
        assert loaded(instead, 0, "start")["loaded"][:2] == (1, "storage")


def test_another_job_is_not_loaded(ranks: Ranks) -> None:
    """A checkpoint of another job in the same directory is passed over."""
    ranks("foreign", 2, kind="dcp", job="other")
    fresh = ranks("session", 2, layout="fsdp2", until=1)
    assert loaded(fresh, 0, "start")["loaded"][0] == 0
