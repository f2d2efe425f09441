"""A worker's environment beyond torchrun's variables, which another test compares with real torchrun."""

import json

import pytest

from ftcore.engine.orders import Slice
from ftcore.events.checkpoint import Resume
from ftcore.events.world import WorldBatch
from ftcore.runtime.agent.workers.environment import own_env, worker_env
from ftcore.states.training import RollbackState, Skip
from ftcore.worker import TrainingJob


def env(keeper: str = "", **more: object) -> dict[str, str]:
    part = Slice(
        group_rank=0,
        base_rank=0,
        slots=1,
        size=1,
        role_base_rank=0,
        role_size=1,
        nodes=1,
        store_host="h",
        store_port=1,
        restart_count=0,
        max_restarts=3,
        **more,  # type: ignore[arg-type]
    )
    own = own_env(part, 3, keeper, "s3://bucket/c" if keeper else "")
    return worker_env(
        {"FTCORE_RESUME_STEP": "7", "FTCORE_KEEPER": "outer"}, part, 0, job="j", role="r", error_file="e", own=own
    )


def test_a_rollback_sets_variables():
    """The step to resume from, and the data to skip."""
    told = env(resume_step=100, skips=(Skip(step=100, amount=200, unit="batches"),))
    assert told["FTCORE_RESUME_STEP"] == "100"
    assert json.loads(told["FTCORE_SKIP"]) == [{"step": 100, "amount": 200, "unit": "batches"}]


def test_without_a_rollback_no_variable_is_set():
    """Variables of an outer job are not passed on."""
    outer = {"FTCORE_RESUME_STEP", "FTCORE_SKIP", "FTCORE_KEEPER", "FTCORE_RESUME", "FTCORE_LOCAL_RANK", "FTCORE_BATCH"}
    outer |= {"FTCORE_PERSIST_EVERY", "FTCORE_NORM_THRESHOLD", "FTCORE_TOLERATED"}
    assert not outer & env().keys()


def test_the_threshold_of_the_norm_and_accepted_steps_reach_the_script():
    """As the chain and the log have them; a number stays what it is."""
    told = env(norm_threshold=2.5e-07, tolerated=(2, 310))
    assert float(told["FTCORE_NORM_THRESHOLD"]) == 2.5e-07
    assert json.loads(told["FTCORE_TOLERATED"]) == [2, 310]
    assert env(norm_threshold=3.0)["FTCORE_NORM_THRESHOLD"] == "3.0"


def test_a_global_batch_reaches_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ``world.formed`` names replaces the script's own numbers; without it, they hold for all processes."""
    told = env(batch=WorldBatch(size=48, micro=8, lr_scale=0.75, least=16, most=16), persist_every=7)
    assert told["FTCORE_PERSIST_EVERY"] == "7"
    monkeypatch.setenv("FTCORE_BATCH", told["FTCORE_BATCH"])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    job = TrainingJob("")
    assert job.global_batch(64, 4) == (48, 16, 16, (range(16, 24), range(24, 32)), 0.5, 0.75)
    monkeypatch.delenv("FTCORE_BATCH")
    assert job.global_batch(7) == (7, 2, 3, (range(3, 5),), 6 / 7, 1.0)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert job.global_batch(4, 2) == (4, 4, 0, (range(2), range(2, 4)), 0.5, 1.0)
    with pytest.raises(ValueError, match="found a micro-batch of 3; expected a divisor of the global batch of 4"):
        job.global_batch(4, 3)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert job.global_batch(240, micro=80).samples == 40, "each rank has a part, with smaller micro-batches if needed"
    monkeypatch.setenv("WORLD_SIZE", "5")
    with pytest.raises(ValueError, match="4 samples cannot be shared by 5 ranks"):
        job.global_batch(4)


def test_a_keeper_sets_variables() -> None:
    """Its socket, the place of checkpoints, the round, and what to resume from."""
    resume = Resume(step=7, round=2, source="storage", where="s3://bucket/c/step-7")
    told = env("/run/k.sock", resume=resume)
    assert (told["FTCORE_KEEPER"], told["FTCORE_CHECKPOINTS"], told["FTCORE_ROUND"]) == (
        "/run/k.sock",
        "s3://bucket/c",
        "3",
    )
    assert "FTCORE_ROLLBACKS" not in told
    after = env("/run/k.sock", rollbacks=(RollbackState(round=2, step=5),))
    assert json.loads(after["FTCORE_ROLLBACKS"]) == [{"round": 2, "step": 5}]
    assert json.loads(told["FTCORE_RESUME"]) == {
        "step": 7,
        "round": 2,
        "source": "storage",
        "where": "s3://bucket/c/step-7",
    }


@pytest.mark.parametrize(("visible", "device"), [({}, "1"), ({"CUDA_VISIBLE_DEVICES": "4, 6"}, "6")])
def test_virtual_local_rank(visible: dict[str, str], device: str) -> None:
    """LOCAL_RANK is 0, and the worker sees only the visible device of its rank; the keeper gets its real one."""
    part = Slice(
        group_rank=0,
        base_rank=0,
        slots=2,
        size=2,
        role_base_rank=0,
        role_size=2,
        nodes=1,
        store_host="h",
        store_port=1,
        restart_count=0,
        max_restarts=3,
    )
    own = own_env(part, 1, "/run/k.sock", "")
    told = worker_env(visible, part, 1, job="j", role="r", error_file="e", virtual_local_rank=True, own=own)
    assert (told["LOCAL_RANK"], told["RANK"], told["CUDA_VISIBLE_DEVICES"]) == ("0", "1", device)
    assert told["FTCORE_LOCAL_RANK"] == "1"
