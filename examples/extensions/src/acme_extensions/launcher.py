"""Flags of ``ftrun`` from the variables of Acme's scheduler."""

from collections.abc import Mapping


def flags(env: Mapping[str, str]) -> dict[str, str]:
    """Name and workers of the job; none outside of Acme's scheduler."""
    if "ACME_JOB" not in env:
        return {}
    return {"job": env["ACME_JOB"], "nproc-per-node": env["ACME_WORKERS"]}
