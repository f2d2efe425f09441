"""``--assume``: what if a job had an ability that it does not declare, or that this release cannot carry out?

House rule: every output that rests on an assumption says so in its first line.
"""

from collections.abc import Iterable

from ftcore.errors import UsageError
from ftcore.policies.abilities import CARRIED_OUT
from ftcore.policies.base import Ability
from ftcore.policies.yaml_nodes import did_you_mean


def read_assumed(text: str) -> tuple[str, ...]:
    """The abilities of ``--assume``.

    Args:
        text: names, separated by commas.

    Raises:
        UsageError: one is not known.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    known = [str(ability) for ability in Ability]
    for name in names:
        if name not in known:
            raise UsageError(f"--assume: no ability is called {name!r}{did_you_mean(name, known)}")
    if not names:
        raise UsageError(f"--assume: found nothing; expected some of: {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def said_of(assumed: Iterable[str]) -> str:
    """The first line of an output that was made with ``--assume``; empty if nothing was assumed."""
    names = [str(name) for name in assumed]
    if not names:
        return ""
    idle = [name for name in names if name not in CARRIED_OUT]
    unable = f"; this release cannot carry out: {', '.join(idle)}" if idle else ""
    return f"assumed, not declared by any job: {', '.join(names)}{unable}"
