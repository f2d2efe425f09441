"""What the workers of a round resume from: the newest state of which one shard of each replica group is held. Pure.

Memory wins over storage at the same step. Shards in memory, and copies of them, count if their node is a member of the
new world. A rank reads from the memory of its node, or receives its whole state from a rank of its replica group, or
whole shards from other nodes: its own, or those that overlap its state if the number of ranks has changed.

A rank that was killed before it staged its random number generators of the last step cannot continue exactly from that
step. Then the step before is resumed from, if it is complete with all ranks: one step is computed again, on equal data.
"""

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ftcore.events.checkpoint import HeldShard, Resume
from ftcore.events.world import Member
from ftcore.states.model import JobState
from ftcore.states.revisions import COPIES, follows
from ftcore.states.training import LoadState

TRIES = 2
"""Rounds in a row that begin from the same state; after that, an older one is used."""


OLDER_MAX = 2
"""States that are given up for an older one, before a fault that recurs ends the job."""


def resume_of(state: JobState, world: Sequence[Member]) -> Resume | None:
    """Choose what the workers of a new world load.

    Args:
        state: the folded state before the world is formed.
        world: its members.

    Returns:
        The choice; None: ftcore holds no state of this job.
    """
    held = held_by(state, [(member.node, member.incarnation) for member in world])
    names, size = [member.node for member in world], sum(member.slots for member in world)
    whole = HeldState.is_complete if follows(state, COPIES) else lambda each: each.is_enough(names, size)
    states = [each for each in states_of(held) if whole(each) and _is_usable(state, each.resume)]
    stored = [resume for resume in _on_storage(state) if _is_usable(state, resume)]
    newest = max(stored, key=lambda each: (each.step, each.round), default=None)
    best = best_of(states, size)
    if best is None or (newest is not None and newest.step > max(each.step for each in states)):
        return newest
    return best.resume


def _is_usable(state: JobState, resume: Resume) -> bool:
    saved = state.training.saved
    worn = saved.load is not None and saved.load.rounds >= TRIES and _of(saved.load) == _key(resume)
    return not (
        worn
        or saved.is_abandoned(resume.step, resume.round)
        or saved.is_unusable(resume.step, resume.round, resume.source)
    )


def remedy_of(state: JobState) -> Resume | None:
    """What a restart resumes from although the same fault recurs; None: another restart is no remedy.

    No step was completed since the newest round loaded its state, so that state may be the cause. It is tried
    ``TRIES`` times, then an older one, and at most ``OLDER_MAX`` older ones.
    """
    saved, world = state.training.saved, state.rounds.world
    if saved.load is None or world is None or len(saved.unusable) >= OLDER_MAX:
        return None
    resume = resume_of(state, world.members)
    return resume if resume is not None and (saved.load.rounds < TRIES or _key(resume) != _of(saved.load)) else None


def _of(load: LoadState) -> tuple[int, int, str]:
    return load.step, load.round, load.source


def _key(resume: Resume) -> tuple[int, int, str]:
    return resume.step, resume.round, resume.source


def _on_storage(state: JobState) -> Iterable[Resume]:
    for stored in state.training.saved.stored:
        yield Resume(step=stored.step, round=stored.round, source="storage", where=stored.where)


@attrs.frozen
class HeldState:
    """The state of one step in the memory of nodes.

    Args:
        round: the round in which it was staged.
        step: its step.
        nodes: the shards, by the node that holds them.
    """

    round: int
    step: int
    nodes: dict[str, list[HeldShard]]

    @property
    def first(self) -> HeldShard:
        """One of the shards; what it says of the round is the same in all."""
        return next(iter(self.nodes.values()))[0]

    @property
    def savers(self) -> dict[int, tuple[str, int]]:
        """Node and rank of the lowest rank with the tensors of each replica group; copies only if there is no other."""
        found: dict[int, tuple[bool, int, str]] = {}
        for node, shards in self.nodes.items():
            for shard in shards:
                place = (shard.copy, shard.rank, node)
                if shard.tensors and (shard.group not in found or place < found[shard.group]):
                    found[shard.group] = place
        return {group: (node, rank) for group, (_, rank, node) in found.items()}

    @property
    def exact(self) -> bool:
        """Whether every rank has staged its own values."""
        ranks = {shard.rank for shards in self.nodes.values() for shard in shards}
        return len(ranks) == self.first.ranks

    @property
    def resume(self) -> Resume:
        """The choice of this state."""
        return Resume(step=self.step, round=self.round, source="memory")

    def is_complete(self) -> bool:
        """Whether one shard of each replica group is held."""
        return len(self.savers) == self.first.groups

    def is_enough(self, names: Sequence[str], size: int) -> bool:
        """Whether a world of these nodes, with so many ranks, can resume from it, by revisions before ``COPIES``."""
        if self.first.ranks == size or self.first.groups == 1:
            return self.is_complete()
        return all(_groups(self.nodes.get(name, ())) == self.first.groups for name in names)


def best_of(states: Iterable[HeldState], size: int) -> HeldState | None:
    """The newest of these states; one that lacks values of ranks counts as if it was of the step before.

    Args:
        states: the states.
        size: the number of ranks that resume; values of ranks matter only if it is the same.
    """

    def worth(each: HeldState) -> tuple[int, bool, int]:
        whole = each.first.ranks != size or each.exact
        return each.step - (not whole), whole, each.round

    return max(states, key=worth, default=None)


def at_risk(state: JobState, staying: Sequence[Member]) -> HeldState | None:
    """The newest state that is lost from memory if only these nodes stay, and is not on storage; None: none is.

    Args:
        state: the folded state.
        staying: the nodes that stay, as they are in the next world.
    """
    alive = [(node.node, node.incarnation) for node in state.membership.alive()]
    states = states_of(held_by(state, alive))
    usable = [each for each in states if each.is_complete() and _is_usable(state, each.resume)]
    newest = best_of(usable, sum(member.slots for member in staying))
    kept = resume_of(state, staying)
    return newest if newest is not None and (kept is None or kept.step < newest.step) else None


def states_of(held: Mapping[str, Sequence[HeldShard]]) -> list[HeldState]:
    """Shards by round and step, from shards by node."""
    found: dict[tuple[int, int], dict[str, list[HeldShard]]] = {}
    for node, shards in held.items():
        for shard in shards:
            found.setdefault((shard.round, shard.step), {}).setdefault(node, []).append(shard)
    return [HeldState(round_, step, nodes) for (round_, step), nodes in found.items()]


def held_by(state: JobState, nodes: Iterable[tuple[str, str]]) -> dict[str, tuple[HeldShard, ...]]:
    """What nodes hold in memory, by node.

    Args:
        state: the folded state.
        nodes: names and incarnations.
    """
    memory = state.training.saved.memory
    known = ((name, memory.get(name), life) for name, life in nodes)
    return {name: held.shards for name, held, life in known if held is not None and held.incarnation == life}


def _groups(shards: Sequence[HeldShard]) -> int:
    return len({shard.group for shard in shards if shard.tensors})
