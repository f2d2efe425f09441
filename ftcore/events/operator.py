"""Events of people and of those who speak for them."""

import attrs

from ftcore.events.registry import fact


@fact("operator.commanded")
@attrs.frozen(kw_only=True)
class OperatorCommanded:
    """Somebody asked for something by hand.

    Args:
        command: ``stop``, ``pause``, ``resume`` (of a paused, held or stuck job), ``drain`` or ``evict`` (of a node),
            ``admit`` (a node that was quarantined: it may join again, and its faults so far count no more) or
            ``checkpoint``.
        who: who asked, as ``user@host``, or the signal that ``ftrun`` got.
        why: the reason given, may be empty.
        exit_code: for ``stop``: what ``ftrun`` will exit with.
        node: for ``drain``, ``evict`` and ``admit``: the node.
    """

    command: str
    who: str
    why: str = ""
    exit_code: int = 5
    node: str = ""
