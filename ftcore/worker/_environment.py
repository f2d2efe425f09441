"""What the environment says of the round of this process; it changes when the process enters the next one."""

import json
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ftcore.worker.state.shards import SavedStep

ROUND_ENV: Final = "FTCORE_ROUND"
"""The round of this process."""

LOCAL_RANK_ENV: Final = "FTCORE_LOCAL_RANK"
"""The rank of this process on its node; LOCAL_RANK may be 0 on all of them."""

RESUME_ENV: Final = "FTCORE_RESUME"
ROLLBACKS_ENV: Final = "FTCORE_ROLLBACKS"
CHECKPOINTS_ENV: Final = "FTCORE_CHECKPOINTS"
RESUME_STEP_ENV: Final = "FTCORE_RESUME_STEP"
"""After a rollback, the newest step that may be resumed from."""

BATCH_ENV: Final = "FTCORE_BATCH"
"""The global batch of this world, if ``ftrun`` has one."""

SKIP_ENV: Final = "FTCORE_SKIP"
"""What rollbacks of this run skip: after which step, and how many batches."""

LR_FACTOR_ENV: Final = "FTCORE_LR_FACTOR"
"""Factor for the learning rate of all optimizers."""

PERSIST_EVERY_ENV: Final = "FTCORE_PERSIST_EVERY"
"""Steps between two saves to storage, if the master has chosen before this round."""

NORM_THRESHOLD_ENV: Final = "FTCORE_NORM_THRESHOLD"
"""The least abnormal global norm, if norms stop steps."""

TOLERATED_ENV: Final = "FTCORE_TOLERATED"
"""The steps that are accepted with an abnormal norm."""


def ranks_and_round() -> tuple[int, int, int]:
    """Return the global rank of this process, its rank on its node, and its round."""
    rank, local_rank, round_ = (int(os.environ.get(name, "0")) for name in ("RANK", LOCAL_RANK_ENV, ROUND_ENV))
    return rank, local_rank, round_


def place() -> tuple[int, int, int]:
    """Return the round of this process, its rank and the number of ranks, as they are now."""
    round_, rank, ranks = ((ROUND_ENV, "0"), ("RANK", "0"), ("WORLD_SIZE", "1"))
    return int(os.environ.get(*round_)), int(os.environ.get(*rank)), int(os.environ.get(*ranks))


def local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def skips(tokens: int) -> dict[int, int]:
    """The batches to skip, by the step after which they are.

    Args:
        tokens: tokens of a step of all ranks, which has one batch of each; 0: what is to be skipped in tokens is not.
    """
    found: dict[int, int] = {}
    for each in json.loads(os.environ.get(SKIP_ENV) or "[]"):
        size = 1 if each["unit"] == "batches" else tokens
        if size:
            found[each["step"]] = found.get(each["step"], 0) - (-each["amount"] // size)
    return found


def lr_factor() -> float:
    """The factor for the learning rate; 1: the rates are those of the script."""
    return float(os.environ.get(LR_FACTOR_ENV) or 1.0)


def resume(checkpoints: str) -> "SavedStep | None":
    text = os.environ.get(RESUME_ENV, "")
    if not text:
        return None
    from ftcore.worker.state.shards import SavedStep

    found = json.loads(text)
    where = found.get("where") or checkpoints if found["source"] == "storage" else ""
    return SavedStep(int(found["step"]), int(found["round"]), found["source"], where)


def rollbacks() -> tuple[tuple[int, int], ...]:
    found = json.loads(os.environ.get(ROLLBACKS_ENV, "[]"))
    return tuple((int(each["round"]), int(each["step"])) for each in found)


def norm_threshold() -> float | None:
    """The least abnormal global norm; None: norms stop no step."""
    text = os.environ.get(NORM_THRESHOLD_ENV, "")
    return float(text) if text else None


def tolerated() -> frozenset[int]:
    """The steps that are accepted with an abnormal norm."""
    return frozenset(json.loads(os.environ.get(TOLERATED_ENV) or "[]"))
