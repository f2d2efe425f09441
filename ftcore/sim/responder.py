"""Answers of simulated nodes to orders: the fact for an order that was carried out, and for one that was not.

For campaigns and ``testing.JobDriver``. The facts are those of the production agent (``engine/agent.py``), which itself
runs in the protocol simulator.

Pure functions: the caller decides whether and when an order is carried out, and keeps the state of the nodes.
"""

from typing import Any

import attrs

from ftcore.commands import (
    AskPolicy,
    CheckHealth,
    Command,
    DeleteNodes,
    FindBoundary,
    OpenStore,
    ReleaseNode,
    ReplaceNodes,
    StartWorkers,
    StopWorkers,
)
from ftcore.engine.actions import Findings
from ftcore.events.node import HealthChecked, NodeLeft, OrderObeyed, OrderRefused, PlatformAnswered
from ftcore.events.policy import PolicyFaulted
from ftcore.events.worker import WorkersStarted, WorkersStepped, WorkersStopped, WorkersUnstartable
from ftcore.events.world import StoreFailed, StoreOpened
from ftcore.states.membership import NodeState

HEALTHY = Findings(verdict="healthy", device_s=1.0)


def answer(
    command: Command,
    effect: str,
    node: NodeState | None,
    *,
    step: int | None = None,
    how: str = "fork",
    findings: Findings = HEALTHY,
) -> Any:
    """The fact for an order that was carried out; not for ``AskPolicy``.

    Args:
        command: the command.
        effect: ID of the effect.
        node: the node that carried it out; None: the platform.
        step: the last completed step, for an order that keeps the workers.
        how: start method, for ``workers.started``.
        findings: result of a health check.
    """
    if isinstance(command, ReplaceNodes | DeleteNodes):
        return PlatformAnswered(effect=effect, ok=True)
    assert node is not None and not isinstance(command, AskPolicy)
    name, life = node.node, node.incarnation
    match command:
        case StartWorkers(round=round_):
            pids = tuple(range(1000, 1000 + node.slots))
            return WorkersStarted(node=name, incarnation=life, round=round_, pids=pids, how=how)
        case StopWorkers(round=round_):
            codes = (-15,) * node.slots
            return WorkersStopped(node=name, incarnation=life, round=round_, exitcodes=codes, effect=effect)
        case OpenStore(round=round_):
            host, port = node.address, 40000 + round_ % 20000
            return StoreOpened(node=name, incarnation=life, round=round_, host=host, port=port, effect=effect)
        case ReleaseNode(outcome=outcome):
            return NodeLeft(node=name, incarnation=life, reason=outcome)
        case CheckHealth():
            return HealthChecked(node=name, incarnation=life, effect=effect, **attrs.asdict(findings, recurse=False))
        case _:
            boundary = (step or 0) + 1 if isinstance(command, FindBoundary) else getattr(command, "boundary", 0)
            return OrderObeyed(
                node=name, incarnation=life, round=node.round, effect=effect, step=step, boundary=boundary
            )


def failure(command: Command, effect: str, node: NodeState | None, reason: str) -> Any:
    """The fact for an order that was not carried out.

    Args:
        command: the command.
        effect: ID of the effect.
        node: the addressed node; None: the platform, or the master (to ask a policy).
        reason: why not, one sentence.
    """
    if isinstance(command, ReplaceNodes | DeleteNodes):
        return PlatformAnswered(effect=effect, ok=False, reason=reason)
    if isinstance(command, AskPolicy):
        return PolicyFaulted(effect=effect, policy=command.policy, error=reason)
    assert node is not None
    name, life = node.node, node.incarnation
    match command:
        case StartWorkers(round=round_):
            return WorkersUnstartable(node=name, incarnation=life, round=round_, effect=effect, error=reason)
        case OpenStore(round=round_):
            return StoreFailed(node=name, incarnation=life, round=round_, effect=effect, error=reason)
        case _:
            return OrderRefused(node=name, incarnation=life, round=node.round, effect=effect, reason=reason)


def stepped(node: NodeState, step: int) -> WorkersStepped:
    """The fact that all workers of a node have completed the first step of their round.

    Args:
        node: the node.
        step: the step, counted from the start of the training.
    """
    return WorkersStepped(node=node.node, incarnation=node.incarnation, round=node.round, step=step, absolute=True)
