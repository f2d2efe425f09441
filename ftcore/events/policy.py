"""Events of policies: which chain is in force, and every verdict."""

from typing import Any

import attrs

from ftcore.events.registry import decision, fact


@attrs.frozen(kw_only=True)
class ChainEntry:
    """One entry of the chain as it is in force, every option with its value.

    Args:
        policy: name of the policy.
        options: its options, defaults filled in.
    """

    policy: str
    options: dict[str, Any]


@fact("policy.loaded")
@attrs.frozen(kw_only=True)
class PolicyLoaded:
    """A chain of policies is in force from here on.

    Args:
        source: file name, or ``default``.
        text: the file's text, whole; empty for the default.
        digest: hex digest of the text.
        chain: the entries, highest priority first.
    """

    source: str
    text: str
    digest: str
    chain: tuple[ChainEntry, ...]


@decision("policy.considered")
@attrs.frozen(kw_only=True)
class PolicyConsidered:
    """A policy of the chain was asked.

    Args:
        policy: its name.
        verdict: ``take`` or ``pass``.
        reason: why, for people.
        revision: the incident's revision that it was asked about.
        plan: what it will do, if it was taken: ``restart`` or ``end``.
        grace_s: seconds that workers get between TERM and KILL under the plan.
        deadline_s: seconds from a round's start in which the plan must bring its outcome.
        outcome: for ``end``: how the job will end (``failed`` or ``stopped``).
        exit_code: for ``end``: the job's exit code.
        wait_s: seconds of back-off before the plan's new round, if it was taken.
        attempt: the how-manieth attempt of this policy in its budget's window, if it was taken.
    """

    policy: str
    verdict: str
    reason: str
    revision: int
    plan: str = ""
    grace_s: float = 0.0
    deadline_s: float = 0.0
    outcome: str = ""
    exit_code: int = 0
    wait_s: float = 0.0
    attempt: int | None = None
