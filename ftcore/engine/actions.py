"""What an agent's core wants done on its node: the words between ``AgentCore`` and whoever carries them out. Data only.

The owner carries actions out in the order given, and tells the core what came of them.
"""

from typing import Any, TypeAlias, cast

import attrs

from ftcore.commands import IN_PLACE, CheckHealth, Command
from ftcore.engine.orders import Slice
from ftcore.events.node import CheckResult
from ftcore.events.worker import WorkerFailed
from ftcore.ids import Round


@attrs.frozen
class Tell:
    """Put this fact into the outbox.

    Args:
        data: the fact's payload.
        mono: monotonic nanoseconds at which it happened; None: now.
    """

    data: Any
    mono: int | None = None


@attrs.frozen
class TellFailure:
    """Put this fact into the outbox, completed with the evidence that the node has: error file, output, where it lies.

    Args:
        data: the fact, without ``error``, ``tail`` and ``log_dir``.
        mono: monotonic nanoseconds at which it happened.
    """

    data: WorkerFailed
    mono: int


@attrs.frozen
class Start:
    """Start this slice's workers; answer with ``started`` or ``unstartable``.

    Args:
        effect: the order.
        round: the round.
        part: the node's part of its world.
    """

    effect: str
    round: Round
    part: Slice


@attrs.frozen
class Stop:
    """Give up a start that is under way and stop all workers; answer with ``stopped``.

    Args:
        effect: the order; empty if the agent does it by itself.
        round: the newest round that the order stops.
        grace_s: seconds between TERM and KILL.
        reason: why, if the agent does it by itself.
    """

    effect: str
    round: Round
    grace_s: float
    reason: str = ""


@attrs.frozen
class Open:
    """Serve a store; answer with ``store_opened`` or ``store_failed``.

    Args:
        effect: the order.
        round: the round that it will serve.
    """

    effect: str
    round: Round


@attrs.frozen
class Perform:
    """Carry out what leaves the processes in place; answer with ``performed``, ``failed_to`` or ``checked``.

    Args:
        effect: the order.
        command: what to do.
    """

    effect: str
    command: Command


@attrs.frozen
class Leave:
    """The agent's work has ended: stop the workers, say ``farewell``, go.

    Args:
        exit_code: what ``ftrun`` should exit with.
        outcome: ``succeeded``, ``failed``, ``stopped``; if the job goes on without this node ``left``, or ``lost`` if
            the launcher of its workers died.
        reason: one sentence.
    """

    exit_code: int
    outcome: str
    reason: str


@attrs.frozen
class Rejoin:
    """Fenced: drop the bond, stop the workers, then ``begin`` a new life.

    Args:
        reason: what the master said.
    """

    reason: str


@attrs.frozen
class GiveUp:
    """The job does not want this node.

    Args:
        reason: what the master said.
    """

    reason: str


@attrs.frozen
class Lead:
    """Put up a candidate for the master role, unless one of this node lives already.

    Args:
        silent: process id of a leader of this host that fell silent and does not count as living; 0 if there is none;
            None: somebody leads, and a standby is wanted.
    """

    silent: int | None


@attrs.frozen(kw_only=True)
class Findings:
    """What a node's health check found; see ``health.checked`` for the meaning of each."""

    verdict: str
    detail: str = ""
    exchange: str = ""
    device_s: float = 0.0
    exchange_s: float = 0.0
    link_s: float = 0.0
    results: tuple[CheckResult, ...] = ()
    facts: dict[str, str] = attrs.field(factory=dict)
    took_s: float = 0.0


Action: TypeAlias = Tell | TellFailure | Start | Stop | Open | Perform | Leave | Rejoin | GiveUp | Lead
Actions: TypeAlias = list[Action]


def is_check(action: Action) -> bool:
    """A health check."""
    return isinstance(action, Perform) and isinstance(action.command, CheckHealth)


def is_of_workers(action: Action) -> bool:
    """An order to workers that stay in place."""
    return isinstance(action, Perform) and not isinstance(action.command, CheckHealth)


def is_in_place(action: Action) -> bool:
    """Carried out while the processes stay."""
    return isinstance(action, Perform) and isinstance(action.command, IN_PLACE)


def round_of(command: Command) -> Round:
    """The round that a command is about; 0 if it is about none."""
    return cast(Round, getattr(command, "round", Round(0)))
