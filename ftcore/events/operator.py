"""Events of operators, and of signals and tools that act for them."""

import attrs

from ftcore.events.registry import fact


@fact("operator.commanded")
@attrs.frozen(kw_only=True)
class OperatorCommanded:
    """An operator's request.

    Args:
        command: ``stop``, ``pause``, ``resume`` (of a paused, held or stuck job), ``drain`` or ``evict`` (of a node),
            ``admit`` (of a node that is quarantined or has left: it may join again, its past faults no longer count) or
            ``checkpoint``.
        who: the operator, as ``user@host``, or the signal that ``ftrun`` received.
        why: the operator's reason; may be empty.
        exit_code: for ``stop``: exit code of ``ftrun``.
        node: for ``drain``, ``evict`` and ``admit``: the node.
    """

    command: str
    who: str
    why: str = ""
    exit_code: int = 5
    node: str = ""
