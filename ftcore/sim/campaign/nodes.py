"""The nodes of a campaign: made-up agents that obey the engine's orders, and the facts by which they say so.

House rules: an order is answered by the facts that the production agent answers it with, one fact a node, each a turn
of the engine. All nodes of an order answer at the same virtual time: when the slowest has obeyed, for what is waited
for is the last of them anyway. A node that is gone answers nothing.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from ftcore import __version__
from ftcore.commands import (
    CheckHealth,
    OpenStore,
    ReleaseNode,
    StartWorkers,
    StopWorkers,
)
from ftcore.events.node import HealthChecked, NodeJoined, NodeLeft, OrderObeyed
from ftcore.events.worker import WorkersStarted, WorkersStepped, WorkersStopped
from ftcore.events.world import StoreOpened
from ftcore.sim.evidence import Kind

Answer: TypeAlias = Callable[["SimNode", Any, str, int], Any]


@attrs.define(kw_only=True)
class SimNode:
    """A machine and the newest life of its agent.

    Args:
        name: its name.
        place: its place in the fleet; faults hit places.
        slots: workers.
        life: lives of its agent so far.
        alive: its agent lives.
        parked: its workers wait with their state for the next round.
        bad: what the machine shows whenever workers run on it; None if it is sound.
        said: facts of this life so far.
    """

    name: str
    place: int
    slots: int
    life: int = 0
    alive: bool = False
    parked: bool = False
    bad: Kind | None = None
    said: int = 0
    incarnation: str = ""

    def begin(self) -> NodeJoined:
        """A new life; returns the fact by which it joins."""
        self.life += 1
        self.incarnation = f"{self.name}-{self.life}"
        self.alive, self.parked, self.said = True, False, 0
        return NodeJoined(
            node=self.name,
            incarnation=self.incarnation,
            slots=self.slots,
            host=self.name,
            pid=100,
            address=self.name,
            version=__version__,
            accelerators=self.slots,
            checks=True,
        )

    def stepped(self, round_: int, step: int) -> WorkersStepped:
        """All its workers completed their first step of a round."""
        return WorkersStepped(node=self.name, incarnation=self.incarnation, round=round_, step=step, absolute=True)


def _started(node: SimNode, command: StartWorkers, effect: str, step: int) -> WorkersStarted:
    how = "parked" if node.parked else "fork"
    node.parked = False
    return WorkersStarted(
        node=node.name, incarnation=node.incarnation, round=command.round, pids=_PIDS[: node.slots], how=how
    )


def _stopped(node: SimNode, command: StopWorkers, effect: str, step: int) -> WorkersStopped:
    node.parked = False
    return WorkersStopped(
        node=node.name,
        incarnation=node.incarnation,
        round=command.round,
        exitcodes=_TERMINATED[: node.slots],
        effect=effect,
    )


def _opened(node: SimNode, command: OpenStore, effect: str, step: int) -> StoreOpened:
    return StoreOpened(
        node=node.name,
        incarnation=node.incarnation,
        round=command.round,
        host=node.name,
        port=29500,
        effect=effect,
    )


def _left(node: SimNode, command: ReleaseNode, effect: str, step: int) -> NodeLeft:
    node.alive = False
    return NodeLeft(node=node.name, incarnation=node.incarnation, reason=command.outcome)


def _checked(node: SimNode, command: CheckHealth, effect: str, step: int) -> HealthChecked:
    slow = node.bad is not None and node.bad.shows == "slow"
    return HealthChecked(
        node=node.name,
        incarnation=node.incarnation,
        effect=effect,
        verdict="faulty" if node.bad is not None and not slow else "healthy",
        detail=node.bad.doc if node.bad is not None else "",
        device_s=5.0 if slow else 1.0,
    )


def _obeyed(node: SimNode, command: Any, effect: str, step: int) -> OrderObeyed:
    return OrderObeyed(node=node.name, incarnation=node.incarnation, round=command.round, effect=effect, step=step)


_SLOTS_MAX = 1024
_PIDS = tuple(range(1000, 1000 + _SLOTS_MAX))
_TERMINATED = (-15,) * _SLOTS_MAX

_ANSWERS: dict[type[Any], Answer] = {
    StartWorkers: _started,
    StopWorkers: _stopped,
    OpenStore: _opened,
    ReleaseNode: _left,
    CheckHealth: _checked,
}


def answer_to(command: Any) -> Answer:
    """How a node answers that kind of command: a function of node, command, effect and last completed step."""
    return _ANSWERS.get(type(command), _obeyed)
