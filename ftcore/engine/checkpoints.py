"""Checkpoints: orders their manifests, writes what survivors have staged, and warns of failed saves. Pure."""

from ftcore.commands import CommitCheckpoint, PersistShards
from ftcore.engine.dispatch import members, order
from ftcore.engine.turn import Turn
from ftcore.events.checkpoint import CheckpointFailed, HeldShard
from ftcore.events.policy import AlertRaised
from ftcore.ids import Round
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import OUTGOING
from ftcore.states.resume import by_state, held_by
from ftcore.states.training import SavingState

COMMIT_S = 60.0
"""Timeout in seconds of the order to write a manifest."""

COMMIT_TRIES = 3
"""How often a manifest is ordered."""


def is_committing(state: JobState) -> bool:
    """Whether an order to write a manifest is in progress."""
    return any(isinstance(ordered.command, CommitCheckpoint) for ordered in state.orders.open.values())


def advance_commit(turn: Turn) -> bool:
    """Order the manifest of a checkpoint whose shards are all on storage."""
    state = turn.state
    if is_committing(state):
        return False
    for saving in state.training.saved.saving:
        if len(saving.files) < saving.groups or saving.tries >= COMMIT_TRIES:
            continue
        node = _committer(state, saving)
        if node:
            files = tuple(saving.files[group] for group in sorted(saving.files))
            command = CommitCheckpoint(round=Round(saving.round), step=saving.step, files=files)
            order(turn, command, (node,), COMMIT_S)
            return True
    return False


def _committer(state: JobState, saving: SavingState) -> str:
    """A living node that wrote one of the shards; empty: none lives."""
    nodes = state.membership.nodes
    living = [name for name in saving.nodes if name in nodes and nodes[name].alive]
    return next((name for name in living if nodes[name].phase not in OUTGOING), next(iter(living), ""))


def warn_of_failed_save(turn: Turn) -> None:
    """Raise an alert for the first checkpoint that could not be written since one was."""
    data = turn.fact.data
    if not isinstance(data, CheckpointFailed) or turn.state.training.saved.failed != turn.fact.seq:
        return
    turn.emit(
        AlertRaised(
            severity="warning",
            title=f"{turn.state.job}: the checkpoint of step {data.step} was not written",
            text=f"{data.node}: {data.reason}. Training goes on, and the copies in memory stay. The next checkpoint is "
            "written again.",
        )
    )


def order_persist(turn: Turn, incident: IncidentState) -> str:
    """Order what the members staged to be written, one shard of each replica group; returns why that is impossible.

    After a fault the plan does not wait for it: the memory outlives the workers. Before a node leaves, it does.
    """
    state = turn.state
    assert state.rounds.world is not None
    round_ = state.rounds.world.round
    held = held_by(state, [(node.node, node.incarnation) for node in members(state)])
    states = {step: nodes for (held_round, step), nodes in by_state(held).items() if held_round == round_}
    for step in sorted(states, reverse=True):
        savers = _savers(states[step])
        first = next(iter(states[step].values()))[0]
        if len(savers) == first.groups:
            command = PersistShards(round=Round(round_), step=step, ranks=tuple(savers[g][1] for g in sorted(savers)))
            nodes = tuple(dict.fromkeys(node for node, _ in savers.values()))
            deadline_s = incident.plan_in_force().deadline_s or COMMIT_S
            order(turn, command, nodes, deadline_s, incident=None if incident.kind == "fault" else incident.id)
            return ""
    return _why_incomplete(states)


def _savers(nodes: dict[str, list[HeldShard]]) -> dict[int, tuple[str, int]]:
    """The first holder of each replica group: node and rank."""
    found: dict[int, tuple[str, int]] = {}
    for node, shards in nodes.items():
        for shard in shards:
            if shard.group not in found or shard.rank < found[shard.group][1]:
                found[shard.group] = (node, shard.rank)
    return found


def _why_incomplete(states: dict[int, dict[str, list[HeldShard]]]) -> str:
    if not states:
        return "no surviving rank has staged its state"
    step = max(states)
    savers = _savers(states[step])
    groups = next(iter(states[step].values()))[0].groups
    lacking = [str(group) for group in range(groups) if group not in savers]
    others = f"; other ranks have step {', '.join(map(str, sorted(states)[:-1]))}" if len(states) > 1 else ""
    return f"no surviving rank has step {step} of replica group {', '.join(lacking)}{others}"
