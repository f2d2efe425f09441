"""Handlers of saved state: what keepers hold, what is being written, what a round resumes from."""

from collections.abc import Callable
from typing import TypeVar

from ftcore.commands import CommitCheckpoint
from ftcore.events import checkpoint, job
from ftcore.events.checkpoint import HeldShard, Resume
from ftcore.events.envelope import Event
from ftcore.states import timers
from ftcore.states.fold import disruptions, pace, queues
from ftcore.states.fold.base import FILE, REGISTERED, Changes, declare_abilities, on
from ftcore.states.model import HISTORY_MAX, JobState
from ftcore.states.replicas import contradiction
from ftcore.states.revisions import MANIFEST_AGAIN, RESUME_LATER, follows
from ftcore.states.training import (
    FoundReplicas,
    LoadState,
    NodeMemory,
    RollbackState,
    SavedState,
    SavingState,
    StoredCheckpoint,
    TrainingState,
)

REPLICAS = "replicas"
"""The ability of a job that holds every part of its state on two ranks."""

T = TypeVar("T")

SAVING_MAX = 8
"""Checkpoints that are written at a time; the oldest one is given up for a newer one."""

MANIFEST_DELAY_S, MANIFEST_DELAY_MAX_S = 2.0, 60.0
"""Delay in seconds before a manifest that could not be written is ordered again, doubled up to the second figure."""

GIVEN_UP_MAX = HISTORY_MAX
"""States that are remembered as refused by ranks, and as begun from in vain."""


@on(checkpoint.MemoryHeld)
def _memory_held(state: JobState, event: Event, data: checkpoint.MemoryHeld, changes: Changes) -> None:
    saved, nodes = state.training.saved, state.membership.nodes
    saved.memory = {name: held for name, held in saved.memory.items() if name in nodes and nodes[name].alive}
    if data.log == state.log.identity and state.membership.current(data.node, data.incarnation) is not None:
        saved.memory[data.node] = NodeMemory(incarnation=data.incarnation, shards=data.shards)


@on(checkpoint.ShardPersisted)
def _shard_persisted(state: JobState, event: Event, data: checkpoint.ShardPersisted, changes: Changes) -> None:
    saved, shard = state.training.saved, data.shard
    disruptions.written(state, event, "shard.persisted", changes, data.node, (shard.round, shard.step))
    if saved.is_abandoned(shard.step, shard.round) or _is_stored(saved, shard):
        return
    saving = next((each for each in saved.saving if (each.round, each.step) == (shard.round, shard.step)), None)
    if saving is None:
        saving = SavingState(round=shard.round, step=shard.step, groups=shard.groups)
        saved.saving.append(saving)
        del saved.saving[:-SAVING_MAX]
    if data.node not in saving.nodes:
        saving.nodes.append(data.node)
    if shard.group in saving.files:
        return
    saving.files[shard.group] = data.file
    saving.seconds[data.node] = saving.seconds.get(data.node, 0.0) + data.staged_s + data.seconds


def _is_stored(saved: SavedState, shard: HeldShard) -> bool:
    return any((each.step, each.round) == (shard.step, shard.round) for each in saved.stored)


@on(checkpoint.CheckpointFailed)
def _checkpoint_failed(state: JobState, event: Event, data: checkpoint.CheckpointFailed, changes: Changes) -> None:
    saved = state.training.saved
    saved.failed = saved.failed or event.seq
    if data.away and state.membership.current(data.node, data.incarnation) is not None:
        disruptions.refused(state, event, data)


@on(checkpoint.CheckpointCommitted)
def _checkpoint_committed(
    state: JobState, event: Event, data: checkpoint.CheckpointCommitted, changes: Changes
) -> None:
    training, world = state.training, state.rounds.world
    if data.own:
        disruptions.written(state, event, "checkpoint.committed", changes, moment=(data.round, data.step))
        written = [each for each in training.saved.saving if (each.round, each.step) == (data.round, data.step)]
        if not _store(training, data):
            return
        for saving in written:
            pace.saved(state, saving)
    elif world is None or data.round != world.round:
        return
    if data.step in training.checkpoints:
        return
    training.committed = event.time
    _resume_later(state, data)
    if state.history.at_commit:
        state.history.offered, state.history.at_commit = 0, False
    training.checkpoints.append(data.step)
    training.checkpoints.sort()
    kept = data.kept or state.policy.declared.checkpoints.kept
    training.checkpoints = _retained(training.checkpoints, lambda step: step, kept, data.keep_every)
    queues.committed(state, data.step, changes)


def _resume_later(state: JobState, data: checkpoint.CheckpointCommitted) -> None:
    """After a rollback: resume from what a round since then has committed, not from the rollback's step again."""
    training = state.training
    if training.resume_step is None or not follows(state, RESUME_LATER):
        return
    if data.step > training.resume_step and not training.saved.is_abandoned(data.step, data.round):
        training.resume_step = data.step


def _retained(found: list[T], step_of: Callable[[T], int], kept: int, keep_every: int) -> list[T]:
    """What retention keeps: the newest ones, and the first one of every so many steps.

    Args:
        found: checkpoints, in ascending order of steps.
        step_of: returns the step of one.
        kept: how many of the newest ones; 0: all.
        keep_every: see ``CheckpointCommitted``.
    """
    keep = set(found[-(kept or HISTORY_MAX) :])
    if keep_every > 0:
        keep.update({step_of(each) // keep_every: each for each in reversed(found)}.values())
    return [each for each in found if each in keep][-HISTORY_MAX:]


def _store(training: TrainingState, data: checkpoint.CheckpointCommitted) -> bool:
    """Record a checkpoint of ftcore; false if it is abandoned, or was replaced by a later round."""
    saved = training.saved
    saved.failed = 0
    found = StoredCheckpoint(step=data.step, round=data.round, where=data.where)
    if not _add(training, found):
        return False
    saved.stored = _retained(saved.stored, lambda each: each.step, data.kept, data.keep_every)
    return True


def not_committed(state: JobState, event: Event, command: CommitCheckpoint) -> None:
    """Record that a manifest could not be written: its order is repeated, each time after a longer delay."""
    for saving in state.training.saved.saving:
        if (saving.round, saving.step) == (command.round, command.step) and follows(state, MANIFEST_AGAIN):
            delay_s = min(MANIFEST_DELAY_MAX_S, MANIFEST_DELAY_S * 2 ** min(saving.tries - 1, 10))
            timers.start(state, timers.ManifestTimer(), event.time, delay_s)


@on(checkpoint.ReplicasFound)
def _replicas_found(state: JobState, event: Event, data: checkpoint.ReplicasFound, changes: Changes) -> None:
    saved, world = state.training.saved, state.rounds.world
    if world is None or data.round != world.round or state.membership.current(data.node, data.incarnation) is None:
        return
    saved.replicas = FoundReplicas(round=data.round, groups=data.groups)
    if contradiction(state, data.groups):
        saved.contradicted = saved.contradicted or event.seq
        names = tuple(name for name in state.abilities.declared.get(FILE, ()) if name != REPLICAS)
        declare_abilities(state.abilities, FILE, names)
    redundant = state.policy.declared.replicas != "none" and all(len(group) > 1 for group in data.groups)
    declare_abilities(state.abilities, REGISTERED, (REPLICAS,) if redundant else ())


def _add(training: TrainingState, found: StoredCheckpoint) -> bool:
    """Add a checkpoint to those on storage, as ``checkpoint/retention.py`` would keep it; false if it would not."""
    saved = training.saved
    saved.saving = [each for each in saved.saving if (each.round, each.step) != (found.round, found.step)]
    if saved.is_overtaken(found.step, found.round):
        return False
    useless = [each for each in saved.stored if each.round < found.round and each.step >= found.step]
    gone = {each.step for each in useless}
    training.checkpoints = [step for step in training.checkpoints if step not in gone]
    kept = (
        each for each in saved.stored if each not in useless and (each.step, each.round) != (found.step, found.round)
    )
    saved.stored = sorted([*kept, found], key=lambda each: (each.step, each.round))
    return True


@on(checkpoint.CheckpointFound)
def _checkpoint_found(state: JobState, event: Event, data: checkpoint.CheckpointFound, changes: Changes) -> None:
    training = state.training
    for each in reversed(data.checkpoints):
        if _add(training, StoredCheckpoint(step=each.step, round=each.round, where=each.where)):
            training.checkpoints = sorted({*training.checkpoints, each.step})[-HISTORY_MAX:]
    training.saved.stored = training.saved.stored[-HISTORY_MAX:]


@on(job.JobRolledBack)
def _job_rolled_back(state: JobState, event: Event, data: job.JobRolledBack, changes: Changes) -> None:
    training, saved = state.training, state.training.saved
    training.nan = None
    training.checkpoints = [step for step in training.checkpoints if step <= data.step]
    training.skips = [skip for skip in training.skips if skip.step <= data.step]
    training.step = training.resume_step = data.step
    following = state.rounds.world.round + 1 if state.rounds.world is not None else state.rounds.first
    earlier = [back for back in saved.rollbacks if back.step < data.step]  # the others add nothing to this one
    saved.rollbacks = [*earlier, RollbackState(round=following, step=data.step)][-HISTORY_MAX:]
    saved.stored = [each for each in saved.stored if each.step <= data.step]
    saved.saving = [each for each in saved.saving if each.step <= data.step]


@on(checkpoint.StateLoaded)
def _state_loaded(state: JobState, event: Event, data: checkpoint.StateLoaded, changes: Changes) -> None:
    """What ranks could not load is not offered again: it is the first of the candidates that they refused."""
    saved, world = state.training.saved, state.rounds.world
    if not data.refused or world is None or world.round != data.round or world.resume is None:
        return
    refused = world.resume
    if not saved.is_unusable(refused.step, refused.round, refused.source):
        load = LoadState(step=refused.step, round=refused.round, source=refused.source)
        saved.refused = [*saved.refused, load][-GIVEN_UP_MAX:]


def resumed(state: JobState, resume: Resume | None) -> None:
    """Record what the workers of a new round load; what two rounds in a row began from in vain is not used again."""
    saved = state.training.saved
    load = saved.load
    if load is not None and resume is not None and _is_same(load, resume):
        load.rounds += 1
        return
    if load is not None and load.rounds > 1:
        saved.unusable = [*saved.unusable, load][-GIVEN_UP_MAX:]
    saved.load = None if resume is None else LoadState(step=resume.step, round=resume.round, source=resume.source)


def _is_same(load: LoadState, resume: Resume) -> bool:
    return (load.step, load.round, load.source) == (resume.step, resume.round, resume.source)
