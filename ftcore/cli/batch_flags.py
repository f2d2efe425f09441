"""``--global-batch``, ``--micro-batch`` and ``--batch-rule`` of ``ftrun``.

House rule: with the rule ``divide``, the permitted world sizes become part of the job's specification, so the master
and the policies choose among them as among those of ``--node-sizes``.
"""

import argparse

import msgspec

from ftcore.batch import BatchRule, dividing_sizes, wrong_sizes
from ftcore.cli import options
from ftcore.events.job import BatchSpec, JobSpec
from ftcore.states.world import impossible, usable


def with_batch(parser: argparse.ArgumentParser, args: argparse.Namespace, spec: JobSpec) -> JobSpec:
    """The job with its global batch, and the world sizes that its rule permits; exits with code 2 if there are none.

    Args:
        parser: reports errors.
        args: the command line.
        spec: the job without a global batch.
    """
    if args.global_batch is None:
        for flag, value in (("--micro-batch", args.micro_batch), ("--batch-rule", args.batch_rule)):
            if value is not None:
                parser.error(f"{flag} {value} has no meaning without --global-batch; add it")
        return spec
    size, micro = args.global_batch, args.micro_batch or 0
    if why := wrong_sizes(size, micro):
        parser.error(f"--micro-batch: {why}" if micro else f"--global-batch: {why}")
    slots = options.slots(parser, args.nproc_per_node)
    ranks = spec.nodes_max * slots
    if size < ranks:
        parser.error(f"--global-batch: found {size} samples; expected at least one for each of {ranks} ranks")
    batch = BatchSpec(size=size, micro=micro, rule=BatchRule(args.batch_rule or BatchRule.KEEP))
    if batch.rule is not BatchRule.DIVIDE or impossible(spec):
        return msgspec.structs.replace(spec, batch=batch)
    permitted = (count for count in range(spec.nodes_min, spec.nodes_max + 1) if usable(count, spec) == count)
    sizes = dividing_sizes(size, micro, slots, permitted)
    if not sizes:
        parts = f"{size // micro} micro-batches" if micro else f"{size} samples"
        parser.error(
            f"--batch-rule divide: no permitted number of nodes with {slots} workers each takes equal parts of "
            f"{parts}; change --global-batch, --micro-batch or --nnodes, or use --batch-rule keep"
        )
    return msgspec.structs.replace(spec, batch=msgspec.structs.replace(batch, slots=slots), sizes=sizes)
