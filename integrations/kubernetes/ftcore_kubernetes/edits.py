"""Which edits of a running job can be applied. Pure."""

import msgspec

from ftcore_kubernetes.job_file import JobFileSpec

LIVE = ("replicas",)
"""Keys that apply to a running job: places are added, or their pods leave as at any deletion, with time to save."""

_WHY = {
    "policy": "the policy is recorded in the log when a run starts",
    "min_replicas": "the range of sizes is part of the run, and every node has joined with it",
    "max_replicas": "the range of sizes is part of the run, and every node has joined with it",
    "command": "a run has one command",
    "store": "the log of a run cannot move",
}


def refused_edits(old: JobFileSpec, new: JobFileSpec) -> list[str]:
    """The keys that differ and cannot change while the job runs, each with the reason.

    Args:
        old: what the job runs with.
        new: the edited job.
    """
    found = []
    for field in msgspec.structs.fields(JobFileSpec):
        if field.name not in LIVE and getattr(old, field.name) != getattr(new, field.name):
            why = _WHY.get(field.name, "pods that run keep what they were created with")
            found.append(f"spec.{field.encode_name}: {why}")
    if (old.least, old.most) != (new.least, new.most) and not any("Replicas" in each for each in found):
        found.append(
            f"spec.replicas: the run has {old.least} to {old.most} pods; set minReplicas and maxReplicas first"
        )
    return found
