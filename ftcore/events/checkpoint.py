"""Events of checkpoints: what is held in memory, what is saved, what a round resumes from."""

from ftcore.events.payload import Payload
from ftcore.events.registry import decision, fact


class HeldShard(Payload, frozen=True, kw_only=True):
    """A complete shard in the memory of a node's keeper.

    Args:
        rank: the global rank that staged it.
        round: the round in which it was staged.
        step: its step.
        group: its replica group; one shard of each group makes a checkpoint.
        groups: number of replica groups.
        ranks: number of ranks of that round.
        tensors: it has the tensors of its replica group. Other ranks of the group on the same node stage only their own
            Python values, with their random number generators.
        copy: it was copied from the node that staged it.
    """

    rank: int
    round: int
    step: int
    group: int
    groups: int
    ranks: int
    tensors: bool = True
    copy: bool = False


@fact("memory.held")
class MemoryHeld(Payload, frozen=True, kw_only=True):
    """The shards in the memory of a node; replaces what was known of this node.

    Reported when the node's workers have stopped. An agent that takes over the keeper of its predecessor reports its
    memory in ``node.joined``.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        log: the identity of the log of these shards; those of another log do not count.
        shards: the complete shards, copies of other nodes' shards included; empty: none.
    """

    node: str
    incarnation: str
    log: str
    shards: tuple[HeldShard, ...]


@fact("shard.persisted")
class ShardPersisted(Payload, frozen=True, kw_only=True):
    """A node's keeper has written a shard to storage.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        shard: the shard.
        file: its file in the checkpoint's directory.
        bytes: size of the file.
        seconds: time that the write took.
        staged_s: time that the copy to memory took before, in seconds.
    """

    node: str
    incarnation: str
    shard: HeldShard
    file: str
    bytes: int
    seconds: float
    staged_s: float = 0.0


@fact("checkpoint.failed")
class CheckpointFailed(Payload, frozen=True, kw_only=True):
    """A node could not write its part of a checkpoint; training goes on, and the copy in memory stays.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        round: the round.
        step: the step.
        reason: why.
        away: the storage refused it or did not answer; the node tries again until a newer state replaces this one.
    """

    node: str
    incarnation: str
    round: int
    step: int
    reason: str
    away: bool = False


@fact("checkpoint.committed")
class CheckpointCommitted(Payload, frozen=True, kw_only=True):
    """A checkpoint is complete: every shard of a step's state is saved.

    Args:
        round: the round that saved it.
        step: the step.
        where: its location; for a checkpoint of the script, for display only.
        seconds: how long training was paused for it.
        kept: checkpoints that are kept, this one included; 0: not reported.
        keep_every: the first checkpoint of every so many steps is kept as well; 0: no others.
        own: ftcore wrote it: a round can resume from ``where``. False: the script wrote it and loads it by itself.
    """

    round: int
    step: int
    where: str = ""
    seconds: float = 0.0
    kept: int = 0
    own: bool = False
    keep_every: int = 0


@decision("interval.chosen")
class IntervalChosen(Payload, frozen=True, kw_only=True):
    """The interval between two saves to storage, for workers that leave it to the master.

    Args:
        steps: the workers save after each step that is a multiple of this.
        interval_s: the interval in seconds.
        bound: what limits it: ``min`` or ``max`` (the policy file), ``cost`` (a save takes as long), or empty: nothing.
        step_s: seconds per step.
        cost_s: seconds that a save takes, staging and writing; None: none was measured yet.
        mtbf_s: the job's mean time between failures in seconds.
        failures: failures that it was computed from; 0: it is an assumption.
        trained_s: seconds trained so far.
        least_s: the shortest interval that the policy file permits.
        most_s: the longest interval that the policy file permits.
    """

    steps: int
    interval_s: float
    bound: str
    step_s: float
    cost_s: float | None
    mtbf_s: float
    failures: int
    trained_s: float
    least_s: float
    most_s: float


class CheckpointOnStorage(Payload, frozen=True, kw_only=True):
    """A complete checkpoint of ftcore on storage.

    Args:
        round: the round that saved it.
        step: its step.
        where: its location.
    """

    round: int
    step: int
    where: str


@fact("checkpoint.found")
class CheckpointFound(Payload, frozen=True, kw_only=True):
    """An agent that found no living master has found checkpoints of this log on storage.

    A keeper may have committed them after its agent had ended, so that no ``checkpoint.committed`` reported them.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        checkpoints: the newest ones that no rollback made useless, the newest first.
    """

    node: str
    incarnation: str
    checkpoints: tuple[CheckpointOnStorage, ...]


@fact("state.loaded")
class StateLoaded(Payload, frozen=True, kw_only=True):
    """The workers of a round have restored their state.

    Args:
        node: the node that reports it.
        incarnation: the agent's incarnation.
        round: the round of the workers.
        step: the step of the state; 0: nothing was restored.
        source: ``memory``, ``storage``, ``replica`` (received from another rank), or empty: nothing.
        seconds: the longest time that a rank of the node took.
        refused: candidates that could not be used, as ``PLACE: reason``.
    """

    node: str
    incarnation: str
    round: int
    step: int
    source: str
    seconds: float
    refused: tuple[str, ...] = ()


@fact("batches.skipped")
class BatchesSkipped(Payload, frozen=True, kw_only=True):
    """The workers of a node have skipped batches of the registered data, as ``data.skipped`` decided.

    Args:
        node: the node that reports it.
        incarnation: the agent's incarnation.
        round: the round of the workers.
        step: the step after which they were skipped.
        batches: how many each rank has skipped.
    """

    node: str
    incarnation: str
    round: int
    step: int
    batches: int


@fact("data.positioned")
class DataPositioned(Payload, frozen=True, kw_only=True):
    """The workers of a round continue the registered data at a place of its order (``ftcore.data``), before the next
    step.

    Args:
        node: the node of rank 0, which reports it.
        incarnation: the agent's incarnation.
        round: the round of the workers.
        step: the number of the last completed step.
        position: the place of the next sample, or before it if places there are left out.
        batch: how many samples a step takes, over all ranks.
        size: number of samples of the data set.
        seed: of the order of the samples.
        shuffle: whether they are shuffled.
        skipped: the last 1,000 ranges of places that are left out, in order: first place, place after the last one.
    """

    node: str
    incarnation: str
    round: int
    step: int
    position: int
    batch: int
    size: int
    seed: int
    shuffle: bool
    skipped: tuple[tuple[int, int], ...] = ()


@fact("replicas.found")
class ReplicasFound(Payload, frozen=True, kw_only=True):
    """The ranks of a round have registered their state, and know which of them hold the same.

    Args:
        node: the node that reports it: that of rank 0.
        incarnation: the agent's incarnation.
        round: the round of the workers.
        groups: the replica groups, in ascending order of their first rank; each rank is in one of them.
    """

    node: str
    incarnation: str
    round: int
    groups: tuple[tuple[int, ...], ...]


class Resume(Payload, frozen=True, kw_only=True):
    """What the workers of a round load; part of ``world.formed``.

    Args:
        step: the step of the state.
        round: the round that saved it.
        source: ``memory`` or ``storage``.
        where: the checkpoint's location, for ``storage``.
    """

    step: int
    round: int
    source: str
    where: str = ""
