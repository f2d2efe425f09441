"""The environment of workers: the variables of torchrun (torch 2.13, ``local_elastic_agent._start_workers``).

Two further variables are set only after a rollback.
"""

from collections.abc import Mapping

import msgspec

from ftcore.engine.orders import Slice

RESUME_STEP = "FTCORE_RESUME_STEP"
"""After a rollback: the step of the checkpoint from which the script must resume, even if newer ones exist."""

SKIP = "FTCORE_SKIP"
"""Data that the script must skip: a JSON list of ``{"step", "amount", "unit"}``: after which step, how many, and
whether ``batches`` or ``tokens``."""


def worker_env(
    base: Mapping[str, str],
    part: Slice,
    local_rank: int,
    *,
    job: str,
    role: str,
    error_file: str,
    virtual_local_rank: bool = False,
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
    """
    rank = part.base_rank + local_rank
    env = dict(base)
    for name in (RESUME_STEP, SKIP):
        env.pop(name, None)
    if part.resume_step is not None:
        env[RESUME_STEP] = str(part.resume_step)
    if part.skips:
        env[SKIP] = msgspec.json.encode(part.skips).decode()
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
