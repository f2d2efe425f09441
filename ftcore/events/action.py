"""Events of actions: orders and their outcomes."""

from ftcore.commands import Command
from ftcore.events.payload import Payload
from ftcore.events.registry import decision


@decision("action.ordered")
class ActionOrdered(Payload, frozen=True, kw_only=True):
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
class ActionDone(Payload, frozen=True, kw_only=True):
    """Every addressed node has answered, or is no longer in the job.

    Args:
        effect: the action's effect.
    """

    effect: str


@decision("action.failed")
class ActionFailed(Payload, frozen=True, kw_only=True):
    """The action was not completed.

    Args:
        effect: the action's effect.
        reason: why, with the nodes that did not answer.
    """

    effect: str
    reason: str


@decision("action.superseded")
class ActionSuperseded(Payload, frozen=True, kw_only=True):
    """A newer action or decision replaced the action.

    Args:
        effect: the action's effect.
        reason: what replaced it.
    """

    effect: str
    reason: str
