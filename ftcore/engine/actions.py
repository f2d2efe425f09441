"""Actions: what ``AgentCore`` asks its owner to do on the node. Data only.

The owner carries actions out in the given order, and reports the results to the core.
"""

from typing import Any, TypeAlias, cast

import attrs

from ftcore.commands import IN_PLACE, OF_KEEPER, CheckHealth, Command
from ftcore.engine.orders import Slice
from ftcore.events.node import CheckResult
from ftcore.events.worker import WorkerFailed
from ftcore.ids import Round


@attrs.frozen
class Tell:
    """Put a fact into the outbox.

    Args:
        data: payload of the fact.
        mono: monotonic time of the fact in nanoseconds; None: now.
    """

    data: Any
    mono: int | None = None


@attrs.frozen
class TellFailure:
    """Add the node's evidence (error file, last output, log directory) to a fact, and put it into the outbox.

    Args:
        data: the fact, without ``error``, ``tail`` and ``log_dir``.
        mono: monotonic time of the fact in nanoseconds.
    """

    data: WorkerFailed
    mono: int


@attrs.frozen
class StartRound:
    """Start the workers of a slice; answer with ``started`` or ``unstartable``.

    Args:
        effect: effect id of the order.
        round: the round.
        part: the node's part of its world.
    """

    effect: str
    round: Round
    part: Slice


@attrs.frozen
class StopRound:
    """Abort a start in progress and stop all workers; answer with ``stopped``.

    Args:
        effect: effect id of the order; empty if the agent decided it itself.
        round: the newest round that is stopped.
        grace_s: seconds between TERM and KILL.
        reason: why, if the agent decided it itself.
    """

    effect: str
    round: Round
    grace_s: float
    reason: str = ""


@attrs.frozen
class Open:
    """Serve a store; answer with ``store_opened`` or ``store_failed``.

    Args:
        effect: effect id of the order.
        round: the round that the store is for.
    """

    effect: str
    round: Round


@attrs.frozen
class Perform:
    """Carry out a command that keeps the processes running; answer with ``performed``, ``failed_to`` or ``checked``.

    Args:
        effect: effect id of the order.
        command: the command.
    """

    effect: str
    command: Command


@attrs.frozen
class Leave:
    """End the agent: stop the workers, call ``farewell``, exit.

    Args:
        exit_code: exit code of ``ftrun``.
        outcome: ``succeeded``, ``failed`` or ``stopped``; if the job continues without this node, ``left``, or
            ``lost`` if the launcher of its workers died.
        reason: one sentence.
    """

    exit_code: int
    outcome: str
    reason: str


@attrs.frozen
class Rejoin:
    """The agent is fenced: close the connection, stop the workers, then ``begin`` a new incarnation.

    Args:
        reason: the master's reason.
    """

    reason: str


@attrs.frozen
class GiveUp:
    """The job refuses this node for good.

    Args:
        reason: the master's reason.
    """

    reason: str


@attrs.frozen
class Lead:
    """Start a candidate for leadership, unless this node already has a live one.

    Args:
        silent: process ID of a leader on this host that stopped responding and does not count as alive; 0: none;
            None: there is a leader, and a standby is requested.
    """

    silent: int | None


@attrs.frozen(kw_only=True)
class Findings:
    """Results of a node's health check; the fields are those of the event ``health.checked``."""

    verdict: str
    detail: str = ""
    exchange: str = ""
    device_s: float = 0.0
    exchange_s: float = 0.0
    link_s: float = 0.0
    results: tuple[CheckResult, ...] = ()
    facts: dict[str, str] = attrs.field(factory=dict)
    took_s: float = 0.0


Action: TypeAlias = Tell | TellFailure | StartRound | StopRound | Open | Perform | Leave | Rejoin | GiveUp | Lead
Actions: TypeAlias = list[Action]


def is_check(action: Action) -> bool:
    """Whether the action is a health check."""
    return isinstance(action, Perform) and isinstance(action.command, CheckHealth)


def is_of_workers(action: Action) -> bool:
    """Whether the action is a command for running workers."""
    return isinstance(action, Perform) and not isinstance(action.command, (CheckHealth, *OF_KEEPER))


def is_in_place(action: Action) -> bool:
    """Whether the action's command is one of ``IN_PLACE``."""
    return isinstance(action, Perform) and isinstance(action.command, IN_PLACE)


def round_of(command: Command) -> Round:
    """The round of a command; 0 if it has none."""
    return cast(Round, getattr(command, "round", Round(0)))
