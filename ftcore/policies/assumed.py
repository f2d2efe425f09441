"""``--assume``: evaluate policies as if a job had an ability that neither a file declares nor a script reports.

Every output that is based on an assumption says so in its first line.
"""

from collections.abc import Iterable

from ftcore.errors import UsageError
from ftcore.policies.base import Ability
from ftcore.policies.file.yaml_nodes import did_you_mean


def read_assumed(text: str) -> tuple[str, ...]:
    """Parse the value of ``--assume``.

    Args:
        text: names of abilities, separated by commas.

    Raises:
        UsageError: a name is unknown, or there is none.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    known = [str(ability) for ability in Ability]
    for name in names:
        if name not in known:
            raise UsageError(f"--assume: unknown ability {name!r}{did_you_mean(name, known)}")
    if not names:
        raise UsageError(f"--assume: no ability given; accepted: {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def assumption_note(assumed: Iterable[str]) -> str:
    """The first line of an output that was made with ``--assume``; empty if nothing was assumed."""
    names = [str(name) for name in assumed]
    if not names:
        return ""
    return f"assumed, not declared by any job: {', '.join(names)}"
