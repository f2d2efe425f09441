"""The submission of a job: time constants and policy."""

import os
from collections.abc import Mapping, Sequence

import msgspec

from ftcore.errors import UsageError
from ftcore.events.job import JobSpec
from ftcore.launch.policy_file import policy_in_force
from ftcore.platforms import abilities_of
from ftcore.policies.abilities import OF_REGISTERED
from ftcore.policies.file.environment import VARIABLE
from ftcore.runtime.wire.client import whoami
from ftcore.runtime.wire.frames import Submission, submission
from ftcore.timing import DEFAULT, Timing

TIMING_ENV = "FTCORE_TIMING"
"""Time constants as a JSON object, for tests of ftcore itself; they become part of the job's spec."""

NARRATORS_MAX = 16
"""Largest job without node ranks whose nodes all print the narration; each such node follows the whole log."""


def narrates(rank: int | None, nodes: int) -> bool:
    """Whether the node of this rank prints the narration of a job of ``nodes`` nodes."""
    return rank == 0 or (rank is None and nodes <= NARRATORS_MAX)


def base_timing() -> Timing:
    """The default time constants, or for tests of ftcore itself, those of the environment.

    Raises:
        UsageError: those of the environment cannot be used.
    """
    text = os.environ.get(TIMING_ENV)
    if not text:
        return DEFAULT
    try:
        timing = msgspec.json.decode(text, type=dict[str, float])
        changed = msgspec.structs.replace(DEFAULT, **timing)
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
    """A submission with the policy from file, command line and environment.

    Args:
        spec: the job.
        policy: the policy file; None: the default chain.
        slots: workers of a node.
        command: the command line, for display.
        versions: versions to record in addition to ftcore's.
        platform: URL of the platform that launches nodes; empty if there is none.
        max_restarts: ``--max-restarts``, if given.
        grace_s: ``--shutdown-timeout``, if given.
        launch: id of the ``ftrun --local-nodes`` that started this node; empty if none did.

    Raises:
        UsageError: the policy file cannot be used, or names what this job cannot carry out.
    """
    loaded = policy_in_force(
        policy,
        max_restarts=max_restarts,
        grace_s=grace_s,
        switches=os.environ.get(VARIABLE, ""),
        ranks=spec.nodes_max * slots if launch or spec.nodes_max == 1 else None,  # other nodes may have more workers
        abilities=possible_abilities(spec, platform),
    )
    return submission(spec, loaded, command=command, versions=versions, user=whoami(), launch=launch)


def possible_abilities(spec: JobSpec, platform: str) -> tuple[str, ...]:
    """Abilities that a job may turn out to have without declaring them in its policy file.

    Args:
        spec: the job.
        platform: URL of the platform that launches nodes; empty if there is none.
    """
    return (*abilities_of(platform), *(map(str, OF_REGISTERED) if spec.checkpoints else ()))
