"""Which ranks hold the same state: as the policy file declares it, or as the ranks registered it. Pure.

A declaration is exact, or derived from the sizes of a layout. Ranks ``r`` and ``r + m`` of a data-parallel job with
model-parallel size ``m`` differ in their data alone, and every ``optimizer_shard``-th of them holds the same shard:

    data_parallel 8, optimizer_shard 4, 8 ranks: [0,4] [1,5] [2,6] [3,7]

What ranks registered is compared with it: two ranks that are declared as replicas must hold the same tensors.
"""

from ftcore.events.policy import Declared
from ftcore.states.model import JobState
from ftcore.wording import groups_text, plural

WHERE = "job: replicas"
"""The key of the policy file."""

Groups = tuple[tuple[int, ...], ...]


def declared_groups(declared: Declared, size: int) -> Groups:
    """The replica groups that a policy file declares for a world.

    Args:
        declared: the declarations of the file.
        size: the number of ranks.

    Returns:
        The groups; empty: it declares none, or they do not fit this number of ranks.
    """
    if declared.replicas == "all":
        return (tuple(range(size)),) if size > 1 else ()
    if declared.replicas == "layout":
        return _layout_groups(declared.data_parallel, declared.optimizer_shard, size)
    return declared.groups if sum(map(len, declared.groups)) == size else ()


def _layout_groups(data_parallel: int, optimizer_shard: int, size: int) -> Groups:
    if size % data_parallel:
        return ()
    shards = size // data_parallel * optimizer_shard
    return tuple(tuple(range(first, size, shards)) for first in range(shards))


def found_groups(state: JobState) -> Groups:
    """The replica groups that follow from what the ranks of the newest world registered; empty: not known."""
    found, world = state.training.saved.replicas, state.rounds.world
    return found.groups if found is not None and world is not None and found.round == world.round else ()


def misfit(declared: Declared, ranks: int) -> str:
    """Why declared replicas do not exist in a world, whatever its ranks register; empty if they may.

    Args:
        declared: the declarations of the policy file.
        ranks: the size of the job's largest world.
    """
    if declared.replicas == "all" and ranks < 2:
        return f"{WHERE}: all: a job with one rank has no replicas; expected none"
    named = sum(map(len, declared.groups))
    if declared.groups and named != ranks:
        return f"{WHERE}: the groups have {plural(named, 'rank')}, the job has {ranks}; name every rank once"
    if declared.replicas == "layout" and ranks % declared.data_parallel:
        return (
            f"{WHERE}: data_parallel: {declared.data_parallel} does not divide the {plural(ranks, 'rank')} of the job; "
            f"expected a divisor of {ranks}"
        )
    return ""


def contradiction(state: JobState, found: Groups) -> str:
    """Why the declared replicas are not what the ranks of the newest world registered; empty if they are.

    Replicas beyond the declared ones are no contradiction, and a smaller world than the largest one need not fit.

    Args:
        state: the folded state.
        found: the replica groups that follow from what the ranks registered.
    """
    declared, world = state.policy.declared, state.rounds.world
    ranks = sum(map(len, found))
    if world is None or state.spec is None or len(world.members) < state.spec.nodes_max:
        unfit = ""
    else:
        unfit = misfit(declared, ranks)
    group_of = {rank: number for number, group in enumerate(found) for rank in group}
    for group in declared_groups(declared, ranks):
        if len({group_of.get(rank) for rank in group}) > 1:
            held = ", ".join(map(str, group))
            return f"{WHERE}: ranks {held} do not hold the same state; the script registered: {groups_text(found)}"
    return unfit
