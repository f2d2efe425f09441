"""Lines of every failed run that do not name its cause. They have rules so that no other rule reads them."""

from ftcore.faults.rule import COLLATERAL, Rule
from ftcore.faults.taxonomy import FaultClass


def _noise(name: str, pattern: str, reason: str, example: str) -> Rule:
    return Rule(name=name, pattern=pattern, cls=FaultClass.UNKNOWN, weight=0, reason=reason, example=example)


RULES: tuple[Rule, ...] = (
    Rule(
        name="agent-stops-siblings",
        pattern=r"Sending process \d+ closing signal|Forcefully terminating all other processes"
        r"|Main process received SIGTERM|Unable to shutdown process",
        cls=FaultClass.COLLATERAL,
        detail="terminated",
        role=COLLATERAL,
        weight=3,
        reason="agents end the other workers after a first failure",
        example="W0325 torch/elastic/multiprocessing/api.py:897] Sending process 1887 closing signal SIGTERM",
    ),
    _noise(
        "launcher-kills",
        r"Killing subprocess \d+",
        "a launcher ends all of its processes after a first failure, the failed process included",
        "[INFO] [launch.py:315:sigkill_handler] Killing subprocess 8189",
    ),
    Rule(
        name="slurm-stops-step",
        pattern=r"Job step aborted: Waiting|[Tt]erminating job step|Force Terminated job step",
        cls=FaultClass.COLLATERAL,
        detail="terminated",
        role=COLLATERAL,
        weight=3,
        reason="Slurm ends the remaining tasks of a step",
        example="srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
    ),
    _noise(
        "launcher-summary",
        r"ChildFailedError|ProcessRaisedException|^\s*Root Cause \(first observed|direct cause of the following"
        r"|another exception occurred|error_file: <N/A>|To enable traceback see",
        "the launcher's own exception about a failed child",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    ),
    Rule(
        name="nccl-tear-down",
        pattern=r"\[Service thread\] (?:Accept failed|Connection closed)|Could not receive type from localRank"
        r"|Failed to execute operation (?:Close|Connect)",
        cls=FaultClass.COLLATERAL,
        detail="terminated",
        role=COLLATERAL,
        weight=2,
        reason="NCCL's service threads report that peers on the same node end",
        example="[Service thread] Accept failed Resource temporarily unavailable",
    ),
    _noise(
        "terminate-called",
        r"terminate called (?:after throwing an instance of 'c10::\w+'\s*$|without|recursively)",
        "C++ ends after an exception that an earlier line reports",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    ),
)

LATE: tuple[Rule, ...] = (
    _noise(
        "cuda-advice",
        r"CUDA kernel errors might be asynchronously|For debugging consider passing"
        r"|Compile with .?TORCH_USE_CUDA_DSA|Device-side assertion tracking was not enabled",
        "advice that is part of CUDA's error messages",
        "CUDA kernel errors might be asynchronously reported at some other API call",
    ),
    _noise(
        "pytorch-tear-down",
        r"[Tt]aking the entire process down|destroy_process_group\(\) was not called|NET/IB : No device found"
        r"|driver shutting down|context is destroyed|cudaErrorCudartUnloading|preparing to dump debug info"
        r"|(?i:may|might|could|can|or|to avoid|prevents?"
        r"|potentially cause|cause) (?:a )?hang\b",
        "NCCL's and PyTorch's lines during start and shutdown",
        "To avoid data inconsistency, we are taking the entire process down.",
    ),
    _noise(
        "python-end",
        r"resource_tracker: |leaked (?:semaphore|shared_memory)|Exception ignored in|FutureWarning"
        r"|DeprecationWarning|UserWarning|warnings\.warn|Setting OMP_NUM_THREADS",
        "warnings, and Python's messages during shutdown",
        "resource_tracker: There appear to be 12 leaked semaphore objects to clean up at shutdown",
    ),
)
"""Phrases that often share their line with a cause: read after the rules for definite causes."""
