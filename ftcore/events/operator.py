"""Events of operators, and of signals and tools that act for them."""

from ftcore.events.payload import Payload
from ftcore.events.registry import fact


@fact("operator.commanded")
class OperatorCommanded(Payload, frozen=True, kw_only=True):
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


NOTE_CHARS_MAX = 4000
"""Most characters of a note."""


@fact("operator.noted", ignorable=True)
class OperatorNoted(Payload, frozen=True, kw_only=True):
    """A person's note about the job, for ``ftctl logbook``; no decision follows from it.

    Args:
        who: who wrote it, as ``user@host``.
        text: the note, at most ``NOTE_CHARS_MAX`` characters, as it was typed: it may have several lines.
    """

    who: str
    text: str
