"""Checkpoints: orders their manifests, writes what survivors have staged, warns of failed saves. Pure."""

from ftcore.commands import CommitCheckpoint, PersistShards
from ftcore.engine.dispatch import members, order
from ftcore.engine.turn import Turn
from ftcore.events.checkpoint import CheckpointFailed, ReplicasFound, Resume
from ftcore.events.policy import AlertRaised
from ftcore.ids import Round
from ftcore.states import timers
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import OUTGOING
from ftcore.states.replicas import contradiction
from ftcore.states.resume import HeldState, best_of, held_by, states_of
from ftcore.states.revisions import BEGUN_FROM, COPIES, MANIFEST_AGAIN, NEWEST_MANIFEST, follows
from ftcore.states.training import SavingState, StoredCheckpoint

COMMIT_S = 60.0
"""Timeout in seconds of the order to write a manifest."""

AGAIN = "The node tries again; so does the next checkpoint."
"""What follows if the storage refused a shard."""

COMMIT_TRIES = 3
"""How many orders of a manifest, or of later ones, a plan, a round, and the end of the job wait for."""


def awaits_manifest(state: JobState, step: int | None = None) -> bool:
    """Whether the manifest of a checkpoint is being written, or will be, that is newer than all complete ones.

    Storage that is slower than the saves always writes one: so nothing waits for the manifests of later saves. Nor for
    those of earlier ones: orders to a keeper that hangs would be waited for one after the other.

    Args:
        state: the folded state.
        step: the newest step that is waited for; None: that of the newest checkpoint.
    """
    saved = state.training.saved
    ready = [each for each in saved.saving if _is_ready(each) and (step is None or each.step <= step)]
    stored = max(((each.round, each.step) for each in saved.stored), default=(-1, -1))
    newest_alone = step is None or follows(state, NEWEST_MANIFEST)
    awaited = sorted(ready, key=_moment)[-1:] if newest_alone else ready
    return any(_moment(each) > stored and _may_succeed(state, each) for each in awaited)


def awaits_newer(state: JobState, resume: Resume | None) -> bool:
    """Whether a manifest is being written, or will be, of a later step than a round would resume from.

    Only the newest one is awaited: the storage may be unavailable.
    """
    saved, step = state.training.saved, resume.step if resume is not None else 0
    ready = [each for each in saved.saving if _is_ready(each) and not saved.is_overtaken(each.step, each.round)]
    newest = max(ready, key=_moment, default=None)
    return newest is not None and newest.step > step and _may_succeed(state, newest)


def _commits(state: JobState) -> list[CommitCheckpoint]:
    commands = (ordered.command for ordered in state.orders.open.values())
    return [command for command in commands if isinstance(command, CommitCheckpoint)]


def _is_ready(saving: SavingState) -> bool:
    return len(saving.files) >= saving.groups


def _moment(saving: SavingState | StoredCheckpoint) -> tuple[int, int]:
    return saving.round, saving.step


def _may_succeed(state: JobState, saving: SavingState) -> bool:
    """Whether one of the orders that are waited for is open, or will be given."""
    is_open = _moment(saving) in {(each.round, each.step) for each in _commits(state)}
    tries = _tries_since(state, saving) if follows(state, NEWEST_MANIFEST) else saving.tries
    return tries <= COMMIT_TRIES if is_open else tries < COMMIT_TRIES and _is_wanted(state, saving)


def _tries_since(state: JobState, saving: SavingState) -> int:
    """How often the manifest of a checkpoint was ordered, or one of later checkpoints, which are ordered first."""
    later = (each for each in state.training.saved.saving if _is_ready(each) and _moment(each) >= _moment(saving))
    return sum(each.tries for each in later)


def _can_commit(state: JobState, saving: SavingState) -> bool:
    """Whether its manifest may be ordered now; beyond the first tries, only the newest one: a later one replaces it."""
    is_new = follows(state, MANIFEST_AGAIN) and all(
        _moment(each) <= _moment(saving) for each in state.training.saved.stored
    )
    waits = saving.tries > 0 and timers.is_running(state, timers.ManifestTimer())
    return (saving.tries < COMMIT_TRIES or is_new) and not waits and _is_wanted(state, saving)


def _waits_for_newest(state: JobState, saving: SavingState) -> bool:
    """Whether the manifest of the newest checkpoint is ordered again before this one is.

    Its failure may be its own, so an older one is tried meanwhile, but only one for each of its orders: a keeper that
    hangs answers none of them, and the end of the job waits for the newest.
    """
    if not follows(state, NEWEST_MANIFEST):
        return False
    ready = [each for each in state.training.saved.saving if _is_ready(each) and _is_wanted(state, each)]
    newest = max(ready, key=_moment)
    older = sum(each.tries for each in ready if each is not newest)
    return saving is not newest and older >= newest.tries


def _is_wanted(state: JobState, saving: SavingState) -> bool:
    """Whether its manifest can be ordered, and is of use: not that of a step which a rollback leaves behind."""
    saved, plan = state.training.saved, state.incident.plan if state.incident is not None else None
    limit = plan.terms.rollback_to if plan is not None else None
    is_left = limit is not None and saving.step > limit  # retention would remove the rollback's target for it
    is_replaced = follows(state, MANIFEST_AGAIN) and saved.is_overtaken(saving.step, saving.round)
    return not is_left and not is_replaced and bool(_committer(state, saving))


def advance_commit(turn: Turn) -> bool:
    """Order the manifest of the newest checkpoint whose shards are all on storage."""
    state = turn.state
    if _commits(state):
        return False
    for saving in reversed(state.training.saved.saving):
        if _is_ready(saving) and _can_commit(state, saving) and not _waits_for_newest(state, saving):
            files = tuple(saving.files[group] for group in sorted(saving.files))
            command = CommitCheckpoint(round=Round(saving.round), step=saving.step, files=files)
            order(turn, command, (_committer(state, saving),), COMMIT_S)
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
            text=f"{data.node}: {data.reason}. Training goes on, and the copies in memory stay. "
            + (AGAIN if data.away else "The next checkpoint is written again."),
        )
    )


def warn_of_false_replicas(turn: Turn) -> None:
    """Raise an alert when the ranks registered other replicas than the policy file declares, once in a run."""
    data = turn.fact.data
    if not isinstance(data, ReplicasFound) or turn.state.training.saved.contradicted != turn.fact.seq:
        return
    turn.emit(
        AlertRaised(
            severity="warning",
            title=f"{turn.state.job}: the replicas of the policy file are wrong",
            text=f"{contradiction(turn.state, data.groups)}. Training goes on, and what the script registered counts. "
            "Correct the policy file.",
        )
    )


def order_persist(turn: Turn, incident: IncidentState) -> str:
    """Order what the members staged to be written, one shard of each replica group; returns why that is impossible.

    Without storage nothing is ordered: the state stays in memory. After a fault the plan does not wait for the write:
    the memory outlives the workers. Before a node leaves, it does.
    """
    state = turn.state
    world = state.rounds.world
    assert world is not None
    held = held_by(state, [(node.node, node.incarnation) for node in members(state)])
    states = [each for each in states_of(held) if each.savers and _is_of_round(state, each, world.round)]
    best = best_of([each for each in states if len(each.savers) == each.first.groups], world.size)
    if best is None:
        return _why_incomplete(states)
    if not has_storage(state):
        return ""
    deadline_s = incident.plan_in_force().deadline_s or COMMIT_S
    persist(turn, best, deadline_s, None if incident.kind == "fault" else incident.id)
    return ""


def has_storage(state: JobState) -> bool:
    """Whether the job has a place for checkpoints."""
    return state.spec is not None and bool(state.spec.checkpoints)


def _is_of_round(state: JobState, held: HeldState, round_: int) -> bool:
    """Whether a state was saved in the newest round, or the round has begun from it and completed no step since.

    Not if ranks could not load it, or a rollback has left it behind.
    """
    saved, about = state.training.saved, (held.step, held.round)
    load = saved.load
    if held.round == round_ or load is None or not follows(state, BEGUN_FROM):
        return held.round == round_
    begun = (load.step, load.round, load.source) == (*about, held.resume.source)
    return begun and not saved.is_abandoned(*about) and not saved.is_unusable(*about, load.source)


def persist(turn: Turn, held: HeldState, deadline_s: float, incident: str | None) -> None:
    """Order one shard of each replica group to be written from memory to storage."""
    savers = held.savers
    ranks_of: dict[str, tuple[int, ...]] = {}
    for node, rank in (savers[group] for group in sorted(savers)):
        ranks_of[node] = (*ranks_of.get(node, ()), rank)
    ranks = tuple(savers[group][1] for group in sorted(savers))
    writers = tuple(ranks_of.items()) if follows(turn.state, COPIES) else ()
    command = PersistShards(round=Round(held.round), step=held.step, ranks=ranks, writers=writers)
    order(turn, command, tuple(ranks_of), deadline_s, incident=incident)


def _why_incomplete(states: list[HeldState]) -> str:
    if not states:
        return "no surviving rank has staged its state"
    newest = max(states, key=lambda each: each.step)
    lacking = [str(group) for group in range(newest.first.groups) if group not in newest.savers]
    older = ", ".join(str(each.step) for each in sorted(states, key=lambda each: each.step)[:-1])
    others = f"; other ranks have step {older}" if older else ""
    return f"no surviving rank has step {newest.step} of replica group {', '.join(lacking)}{others}"
