"""Jobs whose script registered its state, and facts about their shards."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ftcore.engine.orders import order_for
from ftcore.events.checkpoint import (
    CheckpointCommitted,
    HeldShard,
    MemoryHeld,
    ShardPersisted,
)
from ftcore.events.job import JobSpec
from ftcore.events.master import MasterElected
from ftcore.events.node import OrderObeyed, OrderRefused
from ftcore.events.policy import AbilityDeclared, ChainEntry, Declared
from ftcore.events.world import Member
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain
from ftcore.states.revisions import NEWEST
from ftcore.testing.driver import JobDriver
from ftcore.version import __version__

LOG = "log-1"


def job(
    nodes: int = 2,
    slots: int = 1,
    *,
    url: str = "/checkpoints",
    policies: Sequence[str] = (),
    declared: Declared | None = None,
    decides: int = NEWEST,
) -> JobDriver:
    """A job that trains, and whose script registered its state."""
    names = (*policies, "process_restart", "shrink", "stop")
    chain = tuple(ChainEntry(policy=name, options=default_entry(name).options) for name in names)
    driver = JobDriver(
        nodes,
        slots,
        spec=JobSpec(argv=("train.py",), nodes_min=1, nodes_max=nodes, checkpoints=url),
        policy=msgspec.structs.replace(default_chain(), chain=chain, declared=declared or Declared()),
        decides=decides,
    )
    elected = MasterElected(host="host", pid=1, address="unix:m", version=__version__, decides=decides, log_id=LOG)
    driver.own(elected)
    driver.start()
    driver.own(AbilityDeclared(source="workers", abilities=("pause", "checkpoint", "save")))
    return driver


def shard(
    rank: int, step: int, *, group: int | None = None, groups: int = 1, ranks: int = 2, round_: int = 1
) -> HeldShard:
    """A shard; by default of a job whose ranks all hold the same state."""
    own = 0 if groups == 1 else rank
    return HeldShard(
        rank=rank, round=round_, step=step, group=own if group is None else group, groups=groups, ranks=ranks
    )


def hold(driver: JobDriver, node: str, *shards: HeldShard, log: str = LOG) -> None:
    life = driver.state.membership.nodes[node].incarnation
    driver.say(node, MemoryHeld(node=node, incarnation=life, log=log, shards=shards))


def persist(driver: JobDriver, node: str, one: HeldShard) -> None:
    life = driver.state.membership.nodes[node].incarnation
    name = f"shard-{one.group}"
    driver.say(node, ShardPersisted(node=node, incarnation=life, shard=one, file=name, bytes=1, seconds=0.1))


def committed(driver: JobDriver, step: int, round_: int = 1) -> None:
    driver.own(CheckpointCommitted(round=round_, step=step, where=f"/checkpoints/{step}", own=True))


def world(driver: JobDriver) -> tuple[Member, ...]:
    assert driver.state.rounds.world is not None
    return driver.state.rounds.world.members


def open_orders(driver: JobDriver, kind: type) -> list[Any]:
    return [action for action in driver.state.orders.open.values() if isinstance(action.command, kind)]


def of(driver: JobDriver, kind: type) -> list[Any]:
    return [event.data for event in driver.events if isinstance(event.data, kind)]


def answer(driver: JobDriver, kind: type, node: str, refused: str = "") -> None:
    """A node answers its order of a kind."""
    (action,) = open_orders(driver, kind)
    order, found = order_for(driver.state, action, node), driver.state.membership.nodes[node]
    about = {"node": node, "incarnation": found.incarnation, "round": found.round, "effect": order.effect}
    driver.say(node, OrderRefused(**about, reason=refused) if refused else OrderObeyed(**about))
