"""Events of actions: orders and their outcomes."""

import attrs

from ftcore.commands import Command
from ftcore.events.payload import Payload
from ftcore.events.registry import decision


@decision("action.ordered")
@attrs.frozen(kw_only=True, repr=False, eq=False)
class ActionOrdered(Payload):
    """An order to nodes or to the platform; it is sent only after this event is durable.

    Args:
        effect: identity of the effect, the same on every delivery.
        command: the command.
        nodes: the nodes addressed; empty: all members of the command's round.
        deadline_s: seconds after which an unanswered order counts as failed; None: no deadline.
    """

    effect: str
    command: Command
    nodes: tuple[str, ...]
    deadline_s: float | None = None


@decision("action.done")
@attrs.frozen(kw_only=True, repr=False, eq=False)
class ActionDone(Payload):
    """Every addressed node has answered, or is no longer in the job.

    Args:
        effect: the action's effect.
    """

    effect: str


@decision("action.failed")
@attrs.frozen(kw_only=True, repr=False, eq=False)
class ActionFailed(Payload):
    """The action was not completed.

    Args:
        effect: the action's effect.
        reason: why, with the nodes that did not answer.
    """

    effect: str
    reason: str


@decision("action.superseded")
@attrs.frozen(kw_only=True, repr=False, eq=False)
class ActionSuperseded(Payload):
    """A newer action or decision replaced the action.

    Args:
        effect: the action's effect.
        reason: what replaced it.
    """

    effect: str
    reason: str
