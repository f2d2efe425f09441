"""What the workers of a round resume from: the newest state of which one shard of each replica group is held. Pure.

Memory wins over storage at the same step. Shards in memory count if their node is a member of the new world. A rank
reads from the memory of its node, or receives its whole state from a rank of its replica group. So if the number of
ranks changes, every node must hold all groups, unless all ranks hold the same state.
"""

from collections.abc import Iterable, Mapping, Sequence

from ftcore.events.checkpoint import HeldShard, Resume
from ftcore.events.world import Member
from ftcore.states.model import JobState
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
    saved = state.training.saved
    size = sum(member.slots for member in world)
    load = saved.load
    worn = load is not None and load.rounds >= TRIES
    found = [
        resume
        for resume in (*_in_memory(state, world, size), *_on_storage(state))
        if not saved.is_abandoned(resume.step, resume.round)
        and not saved.is_unusable(resume.step, resume.round, resume.source)
        and not (worn and load is not None and _of(load) == _key(resume))
    ]
    return max(found, key=lambda each: (each.step, each.source == "memory", each.round), default=None)


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


def _in_memory(state: JobState, world: Sequence[Member], size: int) -> Iterable[Resume]:
    held = held_by(state, [(member.node, member.incarnation) for member in world])
    for (round_, step), nodes in by_state(held).items():
        shards = [shard for each in nodes.values() for shard in each]
        if shards[0].ranks == size or shards[0].groups == 1:
            complete = _groups(shards) == shards[0].groups
        else:
            complete = all(_groups(nodes.get(member.node, ())) == shards[0].groups for member in world)
        if complete:
            yield Resume(step=step, round=round_, source="memory")


def held_by(state: JobState, nodes: Iterable[tuple[str, str]]) -> dict[str, tuple[HeldShard, ...]]:
    """What nodes hold in memory, by node.

    Args:
        state: the folded state.
        nodes: names and incarnations.
    """
    memory = state.training.saved.memory
    known = ((name, memory.get(name), life) for name, life in nodes)
    return {name: held.shards for name, held, life in known if held is not None and held.incarnation == life}


def by_state(held: Mapping[str, Sequence[HeldShard]]) -> dict[tuple[int, int], dict[str, list[HeldShard]]]:
    """Shards by round and step, and by the node that holds them."""
    found: dict[tuple[int, int], dict[str, list[HeldShard]]] = {}
    for node, shards in held.items():
        for shard in shards:
            found.setdefault((shard.round, shard.step), {}).setdefault(node, []).append(shard)
    return found


def _groups(shards: Sequence[HeldShard]) -> int:
    return len({shard.group for shard in shards})
