"""This rank's part of the global batch, as the environment of its round says."""

import json
import os

from ftcore.batch import BatchRule, BatchTotal, RankBatch, batch_total, rank_batch, wrong_sizes
from ftcore.worker import _environment


def batch_of_round(size: int, micro: int) -> RankBatch:
    """This rank's part in the present round; see ``TrainingJob.global_batch``."""
    text = os.environ.get(_environment.BATCH_ENV, "")
    _, rank, ranks = _environment.place()
    if text:
        found = json.loads(text)
        total = BatchTotal(int(found["size"]), int(found["micro"]), float(found["lr_scale"]))
    elif why := wrong_sizes(size, micro):
        raise ValueError(f"global_batch: {why}")
    else:
        total = batch_total(size, micro, BatchRule.KEEP, 1, 1, ranks)
    if total.size < ranks:
        raise ValueError(f"global_batch: {total.size} samples cannot be shared by {ranks} ranks")
    return rank_batch(total, rank, ranks)
