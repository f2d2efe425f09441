"""What was done about an incident, in words: the orders beyond a plain restart, and what came of them.

House rules: one line to an event; what every restart does (stop, open a store, start) has no line, the phases tell it.
"""

from collections.abc import Callable
from typing import Any

import attrs

from ftcore.commands import (
    CheckHealth,
    DeleteNodes,
    ParkWorkers,
    PauseWorkers,
    ReleaseNode,
    ReplaceNodes,
    ResumeWorkers,
    RetryStep,
    SaveCheckpoint,
)
from ftcore.events.action import ActionFailed, ActionOrdered
from ftcore.events.envelope import Event
from ftcore.events.incident import DepartureBegun, DepartureDeferred, IncidentContinued, IncidentEscalated
from ftcore.events.job import CheckpointCommitted, DataSkipped, JobRolledBack
from ftcore.events.node import HealthChecked, NodeQuarantined, NodeWarmed, OrderRefused, PlatformAnswered
from ftcore.events.policy import AlertRaised, AlertSent, PlanApplied, PolicyFaulted
from ftcore.events.world import RoundPlanned, WorldFormed
from ftcore.policies.words import plural

STEPS_MAX = 200
"""Steps kept of one incident."""

NAMES_SHOWN = 6


@attrs.frozen(kw_only=True)
class Step:
    """One thing that was done, or came of it.

    Args:
        seq: the event.
        type: its type.
        after_s: seconds since the incident was opened, by the master's clock.
        what: in words.
    """

    seq: int
    type: str
    after_s: float
    what: str


def deed(event: Event) -> str:
    """The line of an event; empty if it has none."""
    tell = _LINES.get(type(event.data))
    return tell(event.data) if tell is not None else ""


def _names(several: tuple[str, ...]) -> str:
    more = len(several) - NAMES_SHOWN
    return ", ".join(several[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _ordered(data: ActionOrdered) -> str:
    tell = _ORDERS.get(type(data.command))
    return tell(data.command, _names(data.nodes)) if tell is not None else ""


def _retry(command: RetryStep, nodes: str) -> str:
    state = {
        "replica": ", with the state of replicas",
        "snapshot": ", from the state before it",
    }.get(command.restore, "")
    return f"step {command.step} is computed again in place{state}" + (", tolerantly" if command.tolerate else "")


_ORDERS: dict[type[Any], Callable[[Any, str], str]] = {
    RetryStep: _retry,
    PauseWorkers: lambda command, nodes: "the workers are to wait at the next step boundary",
    ResumeWorkers: lambda command, nodes: "the workers are to go on",
    ParkWorkers: lambda command, nodes: f"the workers of {nodes} leave their groups and keep their state",
    SaveCheckpoint: lambda command, nodes: "the workers are to save a checkpoint",
    ReplaceNodes: lambda command, nodes: f"the platform is to launch others for {_names(command.nodes)}",
    DeleteNodes: lambda command, nodes: f"the platform is to end {_names(command.nodes)}",
    CheckHealth: lambda command, nodes: f"{nodes} to check devices and links",
    ReleaseNode: lambda command, nodes: f"{nodes} released" if command.outcome == "released" else "",
}


def _planned(data: RoundPlanned) -> str:
    wait = f" after a back-off of {data.wait_s:g} s" if data.wait_s else ""
    return f"round {data.round} is planned with {plural(data.want, 'node')}{wait}"


def _formed(data: WorldFormed) -> str:
    gone = f", without {_names(data.gone)}" if data.gone else ""
    joined = f", with {_names(data.joined)}" if data.joined else ""
    return f"round {data.round}: {plural(data.size, 'rank')} on {plural(data.nodes, 'node')}{joined}{gone}"


def _departed(data: DepartureBegun) -> str:
    ready = f"{_names(data.ready)} ready" if data.ready else "no other node is ready"
    return f"{_names(data.nodes)} leaves now: {ready}"


def _why(text: str) -> str:
    return f": {text}" if text else ""


_LINES: dict[type[Any], Callable[[Any], str]] = {
    ActionOrdered: _ordered,
    ActionFailed: lambda data: f"failed: {data.effect.partition('.')[0]}: {data.reason}",
    OrderRefused: lambda data: f"{data.node} cannot: {data.reason}",
    PlatformAnswered: lambda data: f"the platform {'takes the order' if data.ok else 'declines'}{_why(data.reason)}",
    PlanApplied: lambda data: f"every node has carried out the plan of {data.policy}",
    IncidentContinued: lambda data: f"{data.policy}: {data.outcome}; the chain goes on",
    IncidentEscalated: lambda data: f"{data.policy} did not succeed: {data.reason}",
    DepartureDeferred: lambda data: f"training goes on: {_names(data.nodes)} leaves once its replacement is ready",
    NodeWarmed: lambda data: f"{data.node} can start its workers at once",
    DepartureBegun: _departed,
    HealthChecked: lambda data: f"{data.node} is {data.verdict}{_why(data.detail)}",
    NodeQuarantined: lambda data: f"{data.node} is kept out of all rounds: {data.reason}",
    CheckpointCommitted: lambda data: f"the checkpoint of step {data.step} is committed",
    JobRolledBack: lambda data: f"training goes back to step {data.step}: {data.reason}",
    DataSkipped: lambda data: f"{data.amount} {data.unit} after step {data.step} are left out: {data.reason}",
    AlertRaised: lambda data: f"people are told ({data.severity})",
    AlertSent: lambda data: "the message is sent" if data.ok else f"the message could not be sent: {data.error}",
    PolicyFaulted: lambda data: f"{data.policy} gave no answer: {data.error}",
    RoundPlanned: _planned,
    WorldFormed: _formed,
}
