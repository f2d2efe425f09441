"""Events of actions: what was ordered, and what came of it."""

import attrs

from ftcore.commands import Command
from ftcore.events.registry import decision


@decision("action.ordered")
@attrs.frozen(kw_only=True)
class ActionOrdered:
    """Nodes are told to do something; the order goes out only after this event is durable.

    Args:
        effect: identity of the effect, the same on every delivery.
        command: what to do.
        nodes: the nodes addressed; empty: all members of the command's round.
        deadline_s: seconds after which an unanswered order counts as failed; None: waits for ever.
    """

    effect: str
    command: Command
    nodes: tuple[str, ...]
    deadline_s: float | None = None


@decision("action.done")
@attrs.frozen(kw_only=True)
class ActionDone:
    """Every addressed node answered, or is gone.

    Args:
        effect: the action's effect.
    """

    effect: str


@decision("action.failed")
@attrs.frozen(kw_only=True)
class ActionFailed:
    """The action did not reach its end.

    Args:
        effect: the action's effect.
        reason: why, with the nodes that did not answer.
    """

    effect: str
    reason: str


@decision("action.superseded")
@attrs.frozen(kw_only=True)
class ActionSuperseded:
    """The action is no longer wanted: something newer took its place.

    Args:
        effect: the action's effect.
        reason: what.
    """

    effect: str
    reason: str
