"""Orders: the message that a node receives for an action. Computed from the folded state, not recorded per node."""

import attrs
import msgspec

from ftcore.commands import CheckHealth, Command, PersistShards, StartWorkers
from ftcore.events.checkpoint import Resume
from ftcore.events.world import Member, WorldBatch
from ftcore.ids import EffectId, Term
from ftcore.policies.traits import Trait, having, limit
from ftcore.states.model import ActionState, JobState
from ftcore.states.norms import norm_threshold
from ftcore.states.rate import lr_factor
from ftcore.states.training import RollbackState, Skip


@attrs.frozen(kw_only=True)
class Buddy:
    """A node whose keeper holds copies of this node's shards.

    Args:
        node: its name.
        address: its host name or address.
        port: the port of its keeper.
    """

    node: str
    address: str
    port: int


@attrs.frozen(kw_only=True)
class Slice:
    """A node's part of a world.

    Args:
        group_rank: index of the node among the members, from 0.
        base_rank: global rank of its local rank 0.
        slots: ranks on this node.
        size: ranks in the world.
        role_base_rank: rank of its local rank 0 among the workers of its role.
        role_size: ranks of its role in the world.
        nodes: members of the world.
        store_host: host of the round's TCPStore.
        store_port: its port.
        restart_count: rounds of this run before this one.
        max_restarts: the budget of restarts in force; 0 if the chain has no restarts.
        resume_step: after a rollback: the step to resume from, even if newer checkpoints exist.
        skips: the data to skip.
        lr_factor: factor for the learning rate that the script sets.
        resume: the state to load, if the script registered its state; None: ftcore holds none.
        batch: the global batch; None: the job does not declare it.
        buddies: the nodes to which its shards are copied.
        wards: the nodes of whose shards it holds copies.
        persist_every: steps between two saves to storage, for workers that leave it to the master; 0: not chosen yet.
        rollbacks: what earlier rounds saved and these rollbacks left behind is not loaded, even if nothing else is.
        norm_threshold: a global gradient norm at or over this stops the step; None: norms are not compared.
        tolerated: steps whose abnormal norms are accepted, newest last.
    """

    group_rank: int
    base_rank: int
    slots: int
    size: int
    role_base_rank: int
    role_size: int
    nodes: int
    store_host: str
    store_port: int
    restart_count: int
    max_restarts: int
    resume_step: int | None = None
    skips: tuple[Skip, ...] = ()
    lr_factor: float = 1.0
    resume: Resume | None = None
    batch: WorldBatch | None = None
    buddies: tuple[Buddy, ...] = ()
    wards: tuple[str, ...] = ()
    persist_every: int = 0
    rollbacks: tuple[RollbackState, ...] = ()
    norm_threshold: float | None = None
    tolerated: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class Order:
    """An order as an agent receives it.

    Args:
        effect: identity; an agent that has already carried it out only repeats its answer.
        term: the master's term; an agent that has obeyed a newer one refuses the order.
        command: what to do.
        slice: the node's part of the world, for ``start_workers``.
    """

    effect: EffectId
    term: Term
    command: Command
    slice: Slice | None = None


def order_for(state: JobState, action: ActionState, node: str) -> Order:
    """The order for one node of an action."""
    part = slice_of(state, node) if isinstance(action.command, StartWorkers) else None
    command = action.command
    if isinstance(command, CheckHealth):
        command = _own_check(command, node)
    elif isinstance(command, PersistShards):
        command = _own_shards(command, node)
    return Order(effect=EffectId(action.effect), term=Term(state.term), command=command, slice=part)


def orders_of(state: JobState, action: ActionState) -> dict[str, Order]:
    """The orders of an action by node, for all nodes that have not answered; computed in one pass."""
    if isinstance(action.command, CheckHealth):
        return _check_orders(state, action, action.command)
    if not isinstance(action.command, StartWorkers):
        return {node: order_for(state, action, node) for node in action.waiting}
    assert state.rounds.world is not None
    effect, term = EffectId(action.effect), Term(state.term)
    return {
        member.node: Order(effect=effect, term=term, command=action.command, slice=_slice(state, group_rank, member))
        for group_rank, member in enumerate(state.rounds.world.members)
        if member.node in action.waiting
    }


def _check_orders(state: JobState, action: ActionState, command: CheckHealth) -> dict[str, Order]:
    own = {name: (group,) for group in command.groups for name in group}
    effect, term = EffectId(action.effect), Term(state.term)
    return {
        node: Order(effect=effect, term=term, command=msgspec.structs.replace(command, groups=own.get(node, ())))
        for node in action.waiting
    }


def _own_check(command: CheckHealth, node: str) -> CheckHealth:
    """The check with only the node's own groups, because a node does not need those of ten thousand others."""
    return msgspec.structs.replace(command, groups=tuple(group for group in command.groups if node in group))


def _own_shards(command: PersistShards, node: str) -> PersistShards:
    """The order with only the node's own ranks, for the same reason."""
    if not command.writers:
        return command
    return msgspec.structs.replace(command, ranks=dict(command.writers).get(node, ()), writers=())


def slice_of(state: JobState, node: str) -> Slice:
    """The slice of a node, which must be a member of the newest world."""
    world = state.rounds.world
    assert world is not None
    seat = world.seat(node)
    assert seat is not None, f"{node} is no member"
    return _slice(state, seat, world.members[seat])


def _slice(state: JobState, group_rank: int, member: Member) -> Slice:
    world = state.rounds.world
    assert world is not None
    host, _, port = world.store.rpartition(":")
    role_base_rank, role_size = world.roles[group_rank] if world.roles else (member.base_rank, world.size)
    budget = next(map(limit, having(state.policy.chain, Trait.RESTARTS)), 0)
    return Slice(
        group_rank=group_rank,
        base_rank=member.base_rank,
        slots=member.slots,
        size=world.size,
        role_base_rank=role_base_rank,
        role_size=role_size,
        nodes=len(world.members),
        store_host=host.strip("[]"),
        store_port=int(port),
        restart_count=world.round - state.rounds.first,
        max_restarts=budget,
        resume_step=state.training.resume_step,
        skips=tuple(state.training.skips),
        lr_factor=lr_factor(state),
        resume=world.resume,
        batch=world.batch,
        buddies=tuple(_buddy(state, world.members[seat].node) for seat in world.buddies_of(group_rank)),
        wards=tuple(world.members[seat].node for seat in world.wards_of(group_rank)),
        persist_every=world.persist_every,
        rollbacks=tuple(state.training.saved.rollbacks),
        norm_threshold=norm_threshold(state),
        tolerated=tuple(state.training.tolerated),
    )


def _buddy(state: JobState, name: str) -> Buddy:
    node = state.membership.nodes[name]
    return Buddy(node=name, address=node.address, port=node.copies_port)
