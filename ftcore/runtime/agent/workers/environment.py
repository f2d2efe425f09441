"""The environment of workers: the variables of torchrun (torch 2.13, ``local_elastic_agent._start_workers``).

Further variables of ftcore are set only where they apply.
"""

from collections.abc import Mapping

import msgspec

from ftcore.engine.orders import Slice
from ftcore.shm.rounds import OF_ROUND, PREPARED_ENV

RESUME_STEP = "FTCORE_RESUME_STEP"
"""After a rollback: the step of the checkpoint from which the script must resume, even if newer ones exist."""

SKIP = "FTCORE_SKIP"
"""Data that the script must skip: a JSON list of ``{"step", "amount", "unit"}``: after which step, how many, and
whether ``batches`` or ``tokens``."""

LR_FACTOR = "FTCORE_LR_FACTOR"
"""Factor for the learning rate of all optimizers of torch, which ftcore applies in their steps. Not set: 1."""

KEEPER = "FTCORE_KEEPER"
"""Path of the socket of the node's keeper, which holds staged state."""

CHECKPOINTS = "FTCORE_CHECKPOINTS"
"""Directory or URL of the job's checkpoints; empty: they are kept in memory only."""

RESUME = "FTCORE_RESUME"
"""The state that the script must load, as JSON: ``{"step", "round", "source", "where"}``. Not set: none is known."""

ROLLBACKS = "FTCORE_ROLLBACKS"
"""The rollbacks of the job, as a JSON list of ``{"round", "step"}``: later steps of rounds before that one are not
loaded. Not set: there was none."""

ROUND = "FTCORE_ROUND"
"""The round of the worker; set with ``FTCORE_KEEPER``."""

BATCH = "FTCORE_BATCH"
"""The global batch of the job, as JSON: ``{"size", "micro", "lr_scale", ...}``. Not set: ``ftrun`` has none."""

LOCAL_RANK = "FTCORE_LOCAL_RANK"
"""The worker's rank on the node, for the keeper: with ``--virtual-local-rank``, LOCAL_RANK is 0 on all of them. Set
with ``FTCORE_KEEPER``."""

PERSIST_EVERY = "FTCORE_PERSIST_EVERY"
"""Steps between two saves to storage, for a script that leaves it to ftcore. Not set: not chosen yet."""

NORM_THRESHOLD = "FTCORE_NORM_THRESHOLD"
"""A global gradient norm at or over this number stops the step, which is computed again. Not set: norms are not
compared."""

TOLERATED = "FTCORE_TOLERATED"
"""Steps that continue although their norm is at or over the threshold: a JSON list of their numbers. Not set: none."""

OWN = (
    RESUME_STEP,
    SKIP,
    LR_FACTOR,
    KEEPER,
    CHECKPOINTS,
    RESUME,
    ROLLBACKS,
    ROUND,
    LOCAL_RANK,
    BATCH,
    PERSIST_EVERY,
    NORM_THRESHOLD,
    TOLERATED,
)
"""Variables of ftcore; a worker inherits none of them."""


def own_env(part: Slice, round_: int, keeper: str, checkpoints: str) -> dict[str, str]:
    """The variables of ftcore in the environment of a node's workers.

    Args:
        part: the node's part of the world.
        round_: the round.
        keeper: path of the keeper's socket; empty: there is none.
        checkpoints: where checkpoints are written; empty: nowhere.
    """
    env: dict[str, str] = {}
    if keeper:
        env |= {KEEPER: keeper, CHECKPOINTS: checkpoints, ROUND: str(round_)}
        if part.resume is not None:
            env[RESUME] = msgspec.json.encode(part.resume).decode()
        if part.rollbacks:
            env[ROLLBACKS] = msgspec.json.encode(part.rollbacks).decode()
    if part.resume_step is not None:
        env[RESUME_STEP] = str(part.resume_step)
    if part.persist_every:
        env[PERSIST_EVERY] = str(part.persist_every)
    if part.batch is not None:
        env[BATCH] = msgspec.json.encode(part.batch).decode()
    if part.norm_threshold is not None:
        env[NORM_THRESHOLD] = str(part.norm_threshold)
    if part.tolerated:
        env[TOLERATED] = msgspec.json.encode(part.tolerated).decode()
    if part.skips:
        env[SKIP] = msgspec.json.encode(part.skips).decode()
    if part.lr_factor != 1.0:
        env[LR_FACTOR] = str(part.lr_factor)
    return env


def prepared_env(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker that is started before its round: without the variables that a round defines.

    Args:
        env: what ``worker_env`` returns for any part of any world.
    """
    of_round = OF_ROUND | {"TORCHELASTIC_ERROR_FILE"}
    return {name: text for name, text in env.items() if name not in of_round} | {PREPARED_ENV: "1"}


def worker_env(
    base: Mapping[str, str],
    part: Slice,
    local_rank: int,
    *,
    job: str,
    role: str,
    error_file: str,
    virtual_local_rank: bool = False,
    own: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The complete environment of one worker.

    ``TORCHELASTIC_USE_AGENT_STORE`` is true: ftcore serves the round's TCPStore, and every rank is a client.

    Args:
        base: the agent's own environment.
        part: the node's part of the world.
        local_rank: the worker's rank on the node.
        job: value of ``TORCHELASTIC_RUN_ID``.
        role: value of ``ROLE_NAME``.
        error_file: file to which the worker can write its error.
        virtual_local_rank: the worker has LOCAL_RANK 0 and sees only its own device.
        own: variables of ftcore, from ``own_env``.
    """
    rank = part.base_rank + local_rank
    env = dict(base)
    for name in OWN:
        env.pop(name, None)
    env |= own or {}
    if KEEPER in env:
        env[LOCAL_RANK] = str(local_rank)
    env.update(
        {
            "LOCAL_RANK": str(local_rank),
            "RANK": str(rank),
            "GROUP_RANK": str(part.group_rank),
            "ROLE_RANK": str(part.role_base_rank + local_rank),
            "ROLE_NAME": role,
            "LOCAL_WORLD_SIZE": str(part.slots),
            "WORLD_SIZE": str(part.size),
            "GROUP_WORLD_SIZE": str(part.nodes),
            "ROLE_WORLD_SIZE": str(part.role_size),
            "MASTER_ADDR": part.store_host,
            "MASTER_PORT": str(part.store_port),
            "TORCHELASTIC_RESTART_COUNT": str(part.restart_count),
            "TORCHELASTIC_MAX_RESTARTS": str(part.max_restarts),
            "TORCHELASTIC_RUN_ID": job,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_ERROR_FILE": error_file,
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": base.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
    )
    if virtual_local_rank:
        visible = base.get("CUDA_VISIBLE_DEVICES")
        device = str(local_rank) if visible is None else visible.split(",")[local_rank].strip()
        env |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
    return env
