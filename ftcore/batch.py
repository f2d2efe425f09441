"""The global batch: which samples of a step each rank computes, in a world of any size. For the master and the worker.

A global batch is divided into micro-batches, and ranks take consecutive ones. Where the number of ranks does not divide
their number, the first ranks take one more. A micro-batch's mean loss, times ``weight``, summed over the micro-batches
of a rank and averaged over the ranks (as DDP averages gradients), is the mean over all samples of the global batch.

Which samples belong to the batch does not depend on the number of ranks, only who computes them.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class BatchRule(StrEnum):
    """What follows when the world has fewer nodes than the largest one of the job."""

    KEEP = "keep"
    """The global batch stays; ranks take more samples each."""
    DIVIDE = "divide"
    """The global batch stays, and only worlds whose ranks take equal numbers of micro-batches are formed."""
    LINEAR_LR = "linear-lr"
    """The global batch shrinks with the number of nodes, and the learning rate with it."""
    SQRT_LR = "sqrt-lr"
    """The global batch shrinks with the number of nodes, and the learning rate with its square root."""


class BatchTotal(NamedTuple):
    """The global batch of a world.

    Args:
        size: samples of one step over all ranks.
        micro: samples of a micro-batch; 0: each rank computes all of its samples at once.
        lr_scale: factor for the learning rate.
    """

    size: int
    micro: int
    lr_scale: float


class RankBatch(NamedTuple):
    """This rank's part of the global batch.

    Args:
        size: samples of one step over all ranks.
        samples: samples of this rank.
        offset: the first sample of this rank, counted from the first of the global batch.
        micro_batches: the samples of each micro-batch of this rank, counted likewise; one forward and backward each.
        weight: factor for the mean loss of each micro-batch, so that DDP's average of the gradients is the gradient of
            the mean over the global batch.
        lr_scale: factor for the learning rate; 1 unless ``ftrun --batch-rule`` scales it.
    """

    size: int
    samples: int
    offset: int
    micro_batches: tuple[range, ...]
    weight: float
    lr_scale: float


def wrong_sizes(size: int, micro: int) -> str:
    """What is wrong with a global batch and its micro-batches; empty if nothing is."""
    if size < 1:
        return f"found a global batch of {size}; expected a number of samples, 1 or more"
    if micro < 0 or (micro and size % micro):
        return f"found a micro-batch of {micro}; expected a divisor of the global batch of {size}"
    return ""


def dividing_sizes(size: int, micro: int, slots: int, nodes: Iterable[int]) -> tuple[int, ...]:
    """The numbers of nodes whose ranks take equal numbers of micro-batches (of samples, without micro-batches).

    Args:
        size: samples of the global batch.
        micro: samples of a micro-batch; 0: there are none.
        slots: ranks of a node.
        nodes: the numbers of nodes to choose from, ascending.
    """
    units = size // (micro or 1)
    return tuple(count for count in nodes if units % (count * slots) == 0)


def batch_total(size: int, micro: int, rule: BatchRule, nodes: int, most: int, ranks: int) -> BatchTotal:
    """The global batch of a world.

    Args:
        size: samples of the global batch in the largest world.
        micro: samples of a micro-batch, a divisor of ``size``; 0: each rank computes all of its samples at once. In a
            world with more ranks than micro-batches, a divisor of it is used.
        rule: what follows when the world is smaller.
        nodes: nodes of the world.
        most: nodes of the job's largest world.
        ranks: ranks of the world.
    """
    total = size
    if rule in (BatchRule.LINEAR_LR, BatchRule.SQRT_LR):
        unit = micro or 1
        total = max(1, (2 * size * nodes + unit * most) // (2 * unit * most)) * unit  # the nearest number of units
    scale = total / size if rule is BatchRule.LINEAR_LR else (total / size) ** 0.5
    fitting = (part for part in range(micro, 0, -1) if micro % part == 0 and total // part >= ranks)
    return BatchTotal(total, next(fitting, min(micro, 1)), scale)


def rank_batch(total: BatchTotal, rank: int, ranks: int) -> RankBatch:
    """The part of one rank of a global batch.

    Args:
        total: the global batch of the world.
        rank: the rank.
        ranks: ranks of the world.
    """
    unit = total.micro or 1
    each, more = divmod(total.size // unit, ranks)
    samples = (each + (rank < more)) * unit
    offset = (rank * each + min(rank, more)) * unit
    step = total.micro or samples
    parts = tuple(range(at, at + step) for at in range(offset, offset + samples, step or 1))
    return RankBatch(total.size, samples, offset, parts, ranks * step / total.size, total.lr_scale)
