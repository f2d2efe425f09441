"""What a job is submitted with."""

import os
from collections.abc import Mapping, Sequence

import attrs
import msgspec

from ftcore.errors import UsageError
from ftcore.events.job import JobSpec
from ftcore.launch.policy_file import policy_in_force
from ftcore.platforms import abilities_of
from ftcore.policies.environment import VARIABLE
from ftcore.runtime.wire.client import whoami
from ftcore.runtime.wire.frames import Submission, submission
from ftcore.timing import DEFAULT, Timing

TIMING_ENV = "FTCORE_TIMING"
"""Time constants as a JSON object, for tests of ftcore itself; they become part of the job's spec."""

TELLERS_MAX = 16
"""Nodes of a job without node ranks that each tell its story; of more, each would follow the log for all the others."""


def tells_here(rank: int | None, nodes: int) -> bool:
    """Whether the node of this rank prints what becomes of a job of so many nodes."""
    return rank == 0 or (rank is None and nodes <= TELLERS_MAX)


def base_timing() -> Timing:
    """The job's time constants: the defaults, or for tests of ftcore itself, what the environment says.

    Raises:
        UsageError: the environment's cannot be used.
    """
    text = os.environ.get(TIMING_ENV)
    if not text:
        return DEFAULT
    try:
        timing = msgspec.json.decode(text, type=dict[str, float])
        changed = attrs.evolve(DEFAULT, **timing)
        changed.check()
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise UsageError(
            f"{TIMING_ENV}: found {text!r}; expected a JSON object of time constants in seconds: {error}"
        ) from error
    return changed


def submitted(
    spec: JobSpec,
    policy: str | None,
    *,
    slots: int,
    command: Sequence[str],
    versions: Mapping[str, str],
    platform: str = "",
    max_restarts: int | None = None,
    grace_s: int | None = None,
    launch: str = "",
) -> Submission:
    """A job with the policy that its file, the command line and the environment give it.

    Args:
        spec: the job.
        policy: the policy file; None: the default chain.
        slots: workers of a node.
        command: the command line, for people.
        versions: versions to record beside ftcore's.
        platform: URL of what launches nodes; empty: nothing does.
        max_restarts: ``--max-restarts``, if it was given.
        grace_s: ``--shutdown-timeout``, if it was given.
        launch: the one call that started this and other nodes; empty: none did.

    Raises:
        UsageError: the policy file cannot be used, or names what this job cannot carry out.
    """
    loaded = policy_in_force(
        policy,
        max_restarts=max_restarts,
        grace_s=grace_s,
        switches=os.environ.get(VARIABLE, ""),
        ranks=spec.nodes_max * slots,
        abilities=abilities_of(platform),
    )
    return submission(spec, loaded, command=command, versions=versions, user=whoami(), launch=launch)
