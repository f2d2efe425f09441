"""What Slurm's environment variables say about a task; see ``srun(1)``, OUTPUT ENVIRONMENT VARIABLES.

House rule: ``ftrun`` imports it at each start, so it imports little. Variables of the job are not read where the step
has its own: ``SLURM_JOB_NODELIST`` still names nodes that the allocation has lost.
"""

import re
from collections.abc import Mapping

from ftcore.errors import UsageError

NODES_ENV = "FTCORE_SLURM_NODES"
"""Nodes that train; further nodes of the step are spares. Set by ``ftctl slurm run``."""

REPLACEMENT_ENV = "FTCORE_SLURM_REPLACEMENT"
"""Set for an agent that the platform starts anew: its command line has all flags but the labels."""

JOB_ENV = "FTCORE_JOB"

OWNER_ENV = "FTCORE_SLURM_JOB"
"""The Slurm job to which ``OWNED`` belong: a job that is submitted from within another one inherits its environment."""

OWNED = (JOB_ENV, NODES_ENV, "FTCORE_STORE", "FTCORE_TOKEN_FILE", "FTCORE_ETCD_PASSWORD_FILE")

INTERACTIVE = "4294967290"
"""The step of an interactive shell (``LaunchParameters=use_interactive_step``)."""


def own(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what another job's ``ftctl slurm run`` has set."""
    if env.get(OWNER_ENV, env.get("SLURM_JOB_ID")) == env.get("SLURM_JOB_ID"):
        return dict(env)
    return {name: value for name, value in env.items() if name not in (*OWNED, OWNER_ENV)}


def job_number(env: Mapping[str, str]) -> str:
    """Slurm's number of a job, as ``scontrol`` and ``squeue`` need it to mean one member of an array.

    Args:
        env: the environment of a batch script or of a task.
    """
    if "SLURM_ARRAY_JOB_ID" in env:
        return f"{env['SLURM_ARRAY_JOB_ID']}_{env.get('SLURM_ARRAY_TASK_ID', '0')}"
    return env["SLURM_JOB_ID"]


def job_name(env: Mapping[str, str]) -> str:
    """The job's name in ftcore: Slurm's name and number, the same after a requeue.

    Args:
        env: the environment of a batch script or of a task.
    """
    if JOB_ENV in env:
        member = env.get("SLURM_ARRAY_TASK_ID") if OWNER_ENV not in env else None
        return f"{env[JOB_ENV]}-{member}" if member else env[JOB_ENV]
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", env.get("SLURM_JOB_NAME", "")).strip("-.")[:40]
    return f"{name or 'slurm'}-{job_number(env)}"


def host_of(node: str) -> str:
    """Slurm's name of an ftcore node's host: ``n7`` of ``n7`` and of its replacement ``n7.1a2b3c4d``."""
    head, dot, tail = node.rpartition(".")
    return head if dot and len(tail) == 8 and all(each in "0123456789abcdef" for each in tail) else node


def flags(env: Mapping[str, str]) -> dict[str, str]:
    """Flags of ``ftrun`` in a task of ``srun``; none anywhere else, also in the batch script itself.

    Args:
        env: the environment.

    Raises:
        UsageError: the step has several tasks on a node, or too few nodes.
    """
    if "SLURM_STEP_ID" not in env or "SLURM_STEP_NUM_NODES" not in env or "SLURM_PTY_PORT" in env:
        return {}
    if env["SLURM_STEP_ID"] == INTERACTIVE:
        return {}
    env = own(env)
    if REPLACEMENT_ENV in env:
        return {"node-labels": labels} if (labels := _labels(env)) else {}
    if int(env.get("SLURM_HET_SIZE", "1")) > 1:
        raise UsageError("heterogeneous jobs are not supported: give ftrun its flags by hand")
    nodes, tasks = int(env["SLURM_STEP_NUM_NODES"]), int(env.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks != nodes:
        raise UsageError(
            f"this step has {tasks} tasks on {nodes} nodes, and ftrun starts the workers of a node itself: "
            "use `srun --ntasks-per-node=1 ftrun --nproc-per-node N`"
        )
    wanted = int(env.get(NODES_ENV) or nodes)
    if not 1 <= wanted <= nodes:
        raise UsageError(f"{NODES_ENV}={wanted}: the step has {nodes} nodes")
    found = {
        "job": job_name(env),
        "nnodes": str(wanted),
        "node-rank": env["SLURM_NODEID"],
        "node-id": env.get("SLURMD_NODENAME", ""),
        "platform": f"slurm:{job_number(env)}",
        "nproc-per-node": env.get("SLURM_GPUS_ON_NODE", ""),
        "node-labels": _labels(env),
    }
    return {name: value for name, value in found.items() if value}


def _labels(env: Mapping[str, str]) -> str:
    """The switches above a node, if Slurm has a topology: ``switch=leaf``, ``switch2`` above it, and so on."""
    names = env.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = env.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    above = [name for name, kind in zip(names, kinds, strict=False) if kind == "switch"]
    return ",".join(f"switch{number if number > 1 else ''}={name}" for number, name in enumerate(reversed(above), 1))
